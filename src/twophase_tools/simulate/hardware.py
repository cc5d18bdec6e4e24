"""What named GPUs can do at most, from their makers' data sheets."""

from dataclasses import dataclass

from twophase.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU's peaks.

    Attributes:
        flops_per_s: bfloat16 products on the matrix units, dense (data sheets often print twice that, for weights of
            which half are zero).
        bytes_per_s: To and from HBM.
        memory_bytes: HBM; makers count in powers of ten.
        link_bytes_per_s: To the other GPUs of a server, in one direction (data sheets add up both).
    """

    name: str
    flops_per_s: float
    bytes_per_s: float
    memory_bytes: float
    link_bytes_per_s: float
    source: str


HARDWARE = {
    "a100": Hardware(
        "NVIDIA A100 SXM 80 GB", 312e12, 2.039e12, 80e9, 300e9,
        "NVIDIA A100 Tensor Core GPU data sheet: 312 TFLOPS BF16, 624 with sparsity; 2,039 GB/s; NVLink 600 GB/s",
    ),
    "h100": Hardware(
        "NVIDIA H100 SXM", 989.5e12, 3.35e12, 80e9, 450e9,
        "NVIDIA H100 Tensor Core GPU data sheet: 1,979 TFLOPS BF16 with sparsity; 3.35 TB/s; NVLink 900 GB/s",
    ),
    "h200": Hardware(
        "NVIDIA H200 SXM", 989.5e12, 4.8e12, 141e9, 450e9,
        "NVIDIA H200 Tensor Core GPU data sheet: 1,979 TFLOPS BF16 with sparsity; 4.8 TB/s; NVLink 900 GB/s",
    ),
    "mi300x": Hardware(
        "AMD Instinct MI300X", 1307.4e12, 5.3e12, 192e9, 448e9,
        "AMD Instinct MI300X data sheet: 1,307.4 TFLOPS BF16, 2,614.9 with sparsity; 5.3 TB/s; 7 Infinity Fabric links "
        "of 128 GB/s, both directions together",
    ),
}  # fmt: skip


def hardware_named(name: str) -> Hardware:
    """Raises ConfigError for a name that is not in the table."""
    if name not in HARDWARE:
        raise ConfigError(f"the GPUs known here are {', '.join(HARDWARE)}, got {name!r}.")
    return HARDWARE[name]
