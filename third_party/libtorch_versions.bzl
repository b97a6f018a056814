"""The LibTorch releases that memledger fetches by itself: the wheel and a few small CUDA packages.

`torch` wheels are complete CUDA builds of LibTorch. libtorch_cpu.so needs cudart and cupti even on a
machine without a GPU; the CUDA headers that LibTorch's own headers include come with the runtime and crt
packages. The versions are those that the torch wheel's METADATA (Requires-Dist: cuda-toolkit) resolves to.
"""

DEFAULT_LIBTORCH_VERSION = "2.11.0"

_CUDA_13_0 = [
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
]

# version -> list of (requirement, wheel platform, SHA-256)
LIBTORCH_WHEELS = {
    "2.11.0": [
        (
            "torch==2.11.0",
            "manylinux_2_28_x86_64",
            "7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a",
        ),
    ] + _CUDA_13_0,
    "2.12.1": [
        (
            "torch==2.12.1",
            "manylinux_2_28_x86_64",
            "6e29e7e74d05bda7d955c75e99459f878ebd970ef851b4057edbd3b34a5eb4a3",
        ),
    ] + _CUDA_13_0,
    "2.13.0": [
        (
            "torch==2.13.0",
            "manylinux_2_28_x86_64",
            "60fcdcb2f3876e21146cb4524ef06397d727ca9ad5f020818547e25075fe3cb7",
        ),
    ] + _CUDA_13_0,
    "2.14.1": [
        (
            "torch==2.14.1",
            "manylinux_2_28_x86_64",
            "305a61f61f35f128579f299c5bd33d475f6a01c6307336139632e30856c4854d",
        ),
    ] + _CUDA_13_0,
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

# What `import torch` and torchvision need, for tests of Python programs: (requirement, SHA-256 of
# the wheel for CPython 3.11).
PYTHON_PACKAGES = [
    ("filelock==4.2.12", "21decfec02f116ed4c954433cdb31f28c3b346b784543177b6d7059da2702ee9"),
    ("fsspec==2026.9.0", "8dd6e646e99ea382bd85f97a45e6b526a442d79423a7dc673f1e2756d05fcb5f"),
    ("jinja2==3.1.6", "85ece4451f492d0c13c5dd7c13a64681a86afae63a5f347908daf103ce6d2f67"),
    ("markupsafe==3.0.4", "6da83a088f8ef93b2d483a8232a4dbf4d69d3d8496b568a03c56becac43e1808"),
    ("mpmath==1.3.0", "a0b2b9fe80bbcd81a6647ff13108738cfb482d481d826cc0e02f5b35e5c88d2c"),
    ("networkx==3.6.1", "d47fbf302e7d9cbbb9e2555a0d267983d2aa476bac30e90dfbe5669bd57f3762"),
    ("numpy==2.4.6", "89cd468399cfd2504718f0ba50e410dca55a170b61a02ad92bb18c8a65186e93"),
    ("pillow==13.0.0", "a625df9a2a5597fa5e5266e01aefc82604bb85d291e3547981e863560d75da6c"),
    ("sympy==1.14.0", "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5"),
    ("typing-extensions==4.16.0", "481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8"),
]

# version of LibTorch -> its torchvision, where one is published
TORCHVISION = {
    "2.11.0": [("torchvision==0.26.0", "fd10b5f994c210f4f6d6761cf686f82d748554adf486cb0979770c3252868c8f")],
}
