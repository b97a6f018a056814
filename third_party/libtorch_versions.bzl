"""The LibTorch releases that memledger fetches by itself: the wheel and the few small CUDA packages beside it.

`torch` wheels are complete CUDA builds of LibTorch. libtorch_cpu.so needs cudart and cupti even on a machine without a GPU;
the CUDA headers that LibTorch's own headers include come with the runtime and crt packages.
The versions are those that the torch wheel's METADATA (Requires-Dist: cuda-toolkit) resolves to.
"""

DEFAULT_LIBTORCH_VERSION = "2.11.0"

# version -> list of (requirement, wheel platform, SHA-256)
LIBTORCH_WHEELS = {
    "2.11.0": [
        (
            "torch==2.11.0",
            "manylinux_2_28_x86_64",
            "7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a",
        ),
        (
            "nvidia-cuda-runtime==13.0.96",
            "manylinux2014_x86_64",
            "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
        ),
        (
            "nvidia-cuda-crt==13.0.88",
            "manylinux2014_x86_64",
            "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4",
        ),
        (
            "nvidia-cuda-cupti==13.0.85",
            "manylinux_2_25_x86_64",
            "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
        ),
    ],
}
