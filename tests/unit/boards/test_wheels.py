"""The bytes of the files that a platform takes from a lock file."""

import pytest

from boards.wheels import download_bytes, tags_of

LOCK = """
[[packages]]
name = "torch"
version = "2.9.1"
sdist = { url = "https://files.example/torch-2.9.1.tar.gz", size = 1 }
wheels = [
    { url = "https://files.example/torch-2.9.1-cp311-cp311-manylinux_2_28_x86_64.whl", size = 2 },
    { url = "https://files.example/torch-2.9.1-cp310-cp310-manylinux_2_28_aarch64.whl", size = 3 },
    { url = "https://files.example/torch-2.9.1-cp311-cp311-manylinux2014_aarch64.whl", size = 4 },
    { url = "https://files.example/torch-2.9.1-cp311-cp311-manylinux_2_28_aarch64.whl", size = 5 },
    { url = "https://files.example/torch-2.9.1-cp311-cp311-manylinux_2_34_aarch64.whl", size = 6 },
]

[[packages]]
name = "uv"
version = "1.0"
wheels = [{ name = "uv-1.0-py3-none-manylinux_2_28_aarch64.whl", size = 10 }]

[[packages]]
name = "runtime"
version = "1.0"
sdist = { url = "https://files.example/runtime-1.0.tar.gz", size = 20 }

[[packages]]
name = "ours"
version = "0.1.0"
archive = { path = "ours-0.1.0-py3-none-any.whl" }
"""


def test_a_platform_takes_the_best_wheel_or_the_source():
    tags = tags_of("3.11", "aarch64", (2, 28))
    assert download_bytes(LOCK, tags) == {"torch": 5, "uv": 10, "runtime": 20}


def test_a_package_without_a_file_for_the_platform():
    tags = tags_of("3.11", "armv7l", (2, 28))
    with pytest.raises(ValueError, match=r"uv 1.0 has no file for this platform"):
        download_bytes(LOCK, tags)
