"""The README's links lead somewhere: files that are there, and sections that the notebooks have."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINKS = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
FEATURES = (ROOT / "README.md").read_text(encoding="utf-8").split("| feature |")[1].split("\n\n")[0].splitlines()[2:]


def headings(notebook: Path) -> set[str]:
    """As JupyterLab names them: spaces become hyphens."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return {title.replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def test_every_link_leads_somewhere():
    local = [link for link in LINKS if "://" not in link]
    assert len(local) > 40
    for link in local:
        path, _, section = link.partition("#")
        assert (ROOT / path).exists(), f"{link}: no such file"
        if section:
            assert section in headings(ROOT / path), f"{link}: the notebook has no such section"


def test_every_feature_has_its_lab_its_module_and_its_test():
    assert len(FEATURES) >= 10
    for row in FEATURES:
        targets = re.findall(r"\]\(([^)]+)\)", row)
        for folder in ("labs/", ("src/twophase/", "src/twophase_tools/"), "tests/"):
            assert any(target.startswith(folder) for target in targets), f"{folder} is missing in {row}"
