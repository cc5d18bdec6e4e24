"""What decides about a GPU's times and is not in its name: driver, clocks, temperature, power, what slows it down."""

import subprocess
from dataclasses import dataclass

import torch

# In the order of GpuState's fields.
FIELDS = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw,power.limit"
# nvidia-smi's name for them until driver 535 or so, and since.
REASON_FIELDS = "clocks_event_reasons.active", "clocks_throttle_reasons.active"
# Bits of that field, from NVML's header (nvmlClocksEventReason...). Idle and set by the user are no slowdowns.
SLOWDOWNS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


@dataclass(frozen=True, slots=True)
class GpuState:
    """One look at a GPU. Figures as nvidia-smi gives them, with their units.

    Attributes:
        slowdowns: Why clocks are lower than they could be; None where the driver does not tell.
    """

    driver: str
    sm_clock: str
    max_sm_clock: str
    memory_clock: str
    temperature: str
    power: str
    power_limit: str
    slowdowns: tuple[str, ...] | None

    def to_text(self) -> str:
        slowed = "unknown" if self.slowdowns is None else ", ".join(self.slowdowns) or "none"
        return (
            f"driver {self.driver}, SM clock {self.sm_clock} of {self.max_sm_clock}, memory {self.memory_clock}, "
            f"{self.temperature} C, {self.power} of {self.power_limit}, slowdowns: {slowed}"
        )


def gpu_state(device: torch.device) -> GpuState | None:
    """The state of a CUDA device now, or None where nvidia-smi does not tell. Takes about a tenth of a second."""
    if device.type != "cuda":
        return None
    gpu = f"--id=GPU-{torch.cuda.get_device_properties(device).uuid}"
    line = _query(gpu, FIELDS)
    if line is None or line.count(",") != FIELDS.count(","):
        return None
    reasons = next((found for field in REASON_FIELDS if (found := _query(gpu, field)) is not None), None)
    return parse_state(line, reasons)


def parse_state(line: str, reasons: str | None) -> GpuState:
    """From the answers to FIELDS and to one of REASON_FIELDS, without headers."""
    driver, clock, max_clock, memory, temperature, power, limit = (value.strip() for value in line.split(","))
    slowdowns = None if reasons is None else _slowdowns(reasons)
    return GpuState(driver, clock, max_clock, memory, temperature, power, limit, slowdowns)


def _slowdowns(reasons: str) -> tuple[str, ...] | None:
    try:
        bits = int(reasons, 16)
    except ValueError:  # such as [N/A]
        return None
    return tuple(name for bit, name in SLOWDOWNS.items() if bits & bit)


def _query(gpu: str, fields: str) -> str | None:
    command = ["nvidia-smi", gpu, f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
