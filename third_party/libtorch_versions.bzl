"""The LibTorch releases that memledger fetches by itself: the wheel and a few small CUDA packages.

`torch` wheels are complete CUDA builds of LibTorch. libtorch_cpu.so needs cudart and cupti even on a
machine without a GPU; the CUDA headers that LibTorch's own headers include come with the runtime and crt
packages. The versions are those that the torch wheel's METADATA (Requires-Dist: cuda-toolkit) resolves to.
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
    "2.15.0": [
        (
            "torch==2.15.0",
            "manylinux_2_28_x86_64",
            "48c2d861134c0b5697c7602cb5ffa68f62a2989fdcd1717e593356f67996ca1e",
        ),
        (
            "nvidia-cuda-runtime==13.2.86",
            "manylinux2014_x86_64",
            "3498247680dfddce31bad102af7e3e26fc795342a3cac64722bb0fa95e7f60f0",
        ),
        (
            "nvidia-cuda-crt==13.2.86",
            "manylinux2014_x86_64",
            "e3ab08801bf9b1e6dc979275d25e816bb5000521b648e19c324d5eef0c79f1da",
        ),
        (
            "nvidia-cuda-cupti==13.2.86",
            "manylinux_2_25_x86_64",
            "8fa29f15dd8336181f961764d9d95236fc6b931dd0c8fcf8cd70aab0c310b586",
        ),
    ],
}
