"""What decides about a GPU's times and is not in its name: driver, clocks, temperature, power, what slows it down."""

import subprocess
from dataclasses import dataclass

import torch

# In the order of GpuState's fields. Drivers before 535 or so do not know the last one, and then tell nothing.
FIELDS = (
    "driver_version,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw,power.limit,"
    "clocks_event_reasons.active"
)
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
    command = ["nvidia-smi", gpu, f"--query-gpu={FIELDS}", "--format=csv,noheader"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_state(line)


def parse_state(line: str) -> GpuState | None:
    """From the answer to FIELDS, without headers; None if it is another one."""
    if line.count(",") != FIELDS.count(","):
        return None
    driver, clock, max_clock, memory, temperature, power, limit, reasons = (value.strip() for value in line.split(","))
    slowdowns: tuple[str, ...] | None = None
    if reasons.startswith("0x"):  # not so [N/A]
        slowdowns = tuple(name for bit, name in SLOWDOWNS.items() if int(reasons, 16) & bit)
    return GpuState(driver, clock, max_clock, memory, temperature, power, limit, slowdowns)
