"""`twophase generate`: ids equal to transformers', the JSON's fields, and a message for each kind of bad input."""

import io
import json
import re
import shutil
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tests.tools.conftest import run_cli

PROMPT = "The capital of France is"


def test_json_ids_equal_transformers_greedy(smollm2_folder):
    done = run_cli("generate", PROMPT, "--device", "cpu", "--max-tokens", 32, "--temperature", 0, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)

    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    config = GenerationConfig(do_sample=False, max_new_tokens=32, pad_token_id=0)
    expected = model.generate(**inputs, generation_config=config)[0].tolist()
    num_prompt_tokens = inputs.input_ids.shape[1]
    assert found["prompt_token_ids"] == expected[:num_prompt_tokens]
    assert found["outputs"][0]["token_ids"] == expected[num_prompt_tokens:]
    text = tokenizer.decode(expected[num_prompt_tokens:], skip_special_tokens=True)
    assert found["outputs"][0]["text"] == text
    assert (found["backend"], found["device"], found["dtype"]) == ("torch", "cpu", "float32")
    assert found["model"] == str(smollm2_folder)


def generate(twophase, folder, *args, prompt="hello there"):
    return twophase("generate", prompt, "--model", folder, "--backend", "torch", "--device", "cpu", *args)


def test_json_fields(twophase, tiny_folder):
    exit_code, out, err = generate(twophase, tiny_folder, "--max-tokens", 5, "--json", "--n", 2, "--temperature", 1)
    assert (exit_code, err) == (0, "")
    found = json.loads(out)
    assert found.keys() == {
        "prompt", "prompt_token_ids", "outputs", "metrics", "model", "backend", "device", "dtype"
    }  # fmt: skip
    assert found["prompt"] == "hello there"
    assert [output["index"] for output in found["outputs"]] == [0, 1]
    for output in found["outputs"]:
        assert output.keys() == {
            "index", "text", "token_ids", "finish_reason", "stop_reason", "error", "cumulative_logprob"
        }  # fmt: skip
        assert output["finish_reason"] in ("length", "stop")
        assert 1 <= len(output["token_ids"]) <= 5
    metrics = found["metrics"]
    assert 0 < metrics["ttft_s"] <= metrics["latency_s"]
    assert metrics["num_prompt_tokens"] == len(found["prompt_token_ids"])


def test_chat_goes_through_the_template(twophase, tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder, tmp_path / "chatty")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}:")
    _, out, _ = generate(twophase, folder, "--max-tokens", 2, "--json", "--chat", prompt="hi")
    _, plain, _ = generate(twophase, tiny_folder, "--max-tokens", 2, "--json", prompt="<user>hi:")
    chatted, expected = json.loads(out), json.loads(plain)
    assert chatted["prompt_token_ids"] == expected["prompt_token_ids"]
    assert chatted["outputs"] == expected["outputs"]
    assert chatted["prompt"] == "hi"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--temperature", "nan"], "temperature must be a finite number >= 0"),
        (["--top-p", "0"], "top_p must be in (0, 1]"),
        (["--max-tokens", "0"], "max_tokens must be a whole number >= 1, got 0"),
        (["--n", "0"], "n must be a whole number >= 1, got 0"),
        (["--n", "2", "--stream"], "--stream shows one completion"),
        (["--beam-width", "2", "--stream"], "--stream shows one completion"),
        (["--beam-width", "2", "--stop", "a"], "--beam-width does not go with --stop"),
        (["--beam-width", "2", "--regex", "a"], "--beam-width does not go with --json-schema, --regex"),
        (["--best-of", "4"], "draws the same N times"),
        (["--stop", ""], "stop strings must be non-empty"),
        (["--dtype", "float8"], "dtype must be one of auto"),
        (["--device", "tpu"], "device must be"),
        (["--device", "cuda:99"], "CUDA devices here"),
        (["--chat"], "chat template"),
    ],
)
def test_bad_options(twophase, tiny_folder, args, message):
    exit_code, out, err = twophase("generate", "hello", "--model", tiny_folder, *args)
    assert (exit_code, out) == (2, "")
    assert err.startswith("twophase: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(
    ("prompt", "said"), [("", "at least one token"), ("word " * 400, "256"), ("x", "smollm2-135m-instruct")]
)
def test_a_prompt_or_a_model_that_cannot_be(twophase, tiny_folder, tmp_path, prompt, said):
    folder = tmp_path / "nowhere" if prompt == "x" else tiny_folder
    exit_code, out, err = generate(twophase, folder, prompt=prompt)
    assert (exit_code, out) == (2, "")
    assert said in err


def test_truncated_weights(twophase, tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder, tmp_path / "broken")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    exit_code, out, err = generate(twophase, folder)
    assert (exit_code, out) == (2, "")
    assert "model.safetensors" in err


@pytest.mark.parametrize("option", ["--json", "--stream"])
def test_a_failing_completion_is_reported(twophase, tiny_folder, monkeypatch, option):
    def broken(logits, rows, before_wait):
        raise ValueError("no dice")

    monkeypatch.setattr("twophase.engine.model_run.sample", broken)
    exit_code, _, err = generate(twophase, tiny_folder, "--max-tokens", 2, option)
    assert exit_code == 1
    assert "no dice" in err


class TestTritonBackend:
    ARGS = ("generate", "hello", "--backend", "triton", "--device", "cpu", "--max-tokens", "2", "--model")

    def test_not_installed(self, tiny_folder, without_triton):
        done = run_cli(*self.ARGS, tiny_folder, PYTHONPATH=str(without_triton))
        assert done.returncode == 2
        assert "Triton is not installed" in done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize("variables", [{}, {"TRITON_INTERPRET": "1"}], ids=["compiled", "interpreted"])
    def test_without_a_gpu(self, tiny_folder, variables):
        done = run_cli(*self.ARGS, tiny_folder, "--json", CUDA_VISIBLE_DEVICES="", **variables)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["backend"] == "triton"


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


def test_the_form_of_the_text(twophase, tiny_folder, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    exit_code, out, err = generate(twophase, tiny_folder, "--json-schema", schema)
    assert (exit_code, err) == (0, "")
    assert json.loads(out) in ({"ok": True}, {"ok": False})
    assert re.fullmatch(r"[ab]{3}-\d\n", generate(twophase, tiny_folder, "--regex", r"[ab]{3}-\d")[1])
    exit_code, out, _ = generate(twophase, tiny_folder, "--choice", "yes", "--choice", "no", "--json")
    (output,) = json.loads(out)["outputs"]
    assert (exit_code, output["finish_reason"]) == (0, "stop")
    assert output["text"] in ("yes", "no")


def test_a_text_cut_before_it_has_its_form_is_a_failure(twophase, tiny_folder):
    exit_code, out, err = generate(twophase, tiny_folder, "--regex", "[ab]{90}", "--max-tokens", 4)
    assert (exit_code, len(out)) == (1, 5)
    assert "completion 0 was cut by --max-tokens 4 or the context limit, so it may be incomplete" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--regex", "(a"), "structured_outputs.regex cannot be enforced: "),
        (("--regex", "a", "--choice", "b"), "not allowed with argument"),
        (("--json-schema", "{tmp}/broken.json"), "structured_outputs.json must be a JSON Schema, and this is not JSON"),
    ],
)
def test_a_wrong_form_is_refused(twophase, tiny_folder, tmp_path, options, message):
    (tmp_path / "broken.json").write_text("{")
    exit_code, out, err = generate(twophase, tiny_folder, *(option.format(tmp=tmp_path) for option in options))
    assert (exit_code, out) == (2, "")
    assert message in err


def test_the_same_text_streamed_from_standard_input_or_with_the_same_seed(twophase, tiny_folder, monkeypatch):
    plain = generate(twophase, tiny_folder, "--max-tokens", 12)
    assert plain[0] == 0
    assert plain[1].endswith("\n")
    assert generate(twophase, tiny_folder, "--max-tokens", 12, "--stream") == plain
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello there\n"))
    assert generate(twophase, tiny_folder, "--max-tokens", 12, prompt="-") == plain
    options = ("--max-tokens", 12, "--temperature", 1.5, "--seed")
    outs = [generate(twophase, tiny_folder, *options, seed)[1] for seed in (1, 1, 2)]
    assert outs[0] == outs[1] != outs[2]


def test_beams_and_the_best_of_several(twophase, tiny_folder):
    def outputs(*options):
        return json.loads(generate(twophase, tiny_folder, "--max-tokens", 5, "--json", *options)[1])["outputs"]

    beams = outputs("--beam-width", 3)
    per_token = [each["cumulative_logprob"] / len(each["token_ids"]) for each in beams]
    assert len(beams) == 3
    assert per_token == sorted(per_token, reverse=True)
    sampled = ("--temperature", 1, "--seed", 3)
    (best,) = outputs(*sampled, "--best-of", 4)
    assert best["token_ids"] == outputs(*sampled, "--n", 4)[best["index"]]["token_ids"]
