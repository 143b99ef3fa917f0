"""Which GPU a process trains on, and how it computes there.

Only `prepare` begins to use CUDA. A process that has done so takes hundreds of megabytes of a GPU's
memory, and the processes that it forks cannot use a GPU.
"""

import os

GPU = "cuda"
CPU, AUTO = "cpu", "auto"


def resolve_device(device: str) -> str:
    """The device that ``runtime.device`` stands for, as torch names it.

    Args:
        device: ``"cuda"``, the first visible GPU (environment variable CUDA_VISIBLE_DEVICES);
            ``"cuda:1"``, the second visible one; ``"auto"``, the first one, or the processor if
            there is none; or a device of another kind, which is returned.

    Raises:
        ValueError: torch cannot use the device here, with the reason.
    """
    if device == CPU:
        return device
    import torch  # takes seconds, which runs on the processor need not wait for

    count = torch.cuda.device_count()  # without CUDA's initialisation
    visible = [f"{GPU}:{number}" for number in range(count)]
    if device == AUTO or (visible and device == GPU):
        return visible[0] if visible else CPU
    if device in visible:
        return device
    if device.partition(":")[0] == GPU:
        devices = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        reason = f"torch {torch.__version__} sees {', '.join(visible) or 'no GPU'} "
        reason += f"(CUDA_VISIBLE_DEVICES={devices})"
    else:
        try:
            torch.empty(0, device=device)
            return device
        except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
            reason = str(error).splitlines()[0].partition(". ")[0]
    raise ValueError(
        f"runtime.device={device} must be cpu, a device that torch can use here, or auto, "
        f"which takes a GPU if there is one: {reason}"
    )


def prepare(device: str) -> None:
    """Let this process compute on a GPU, repeatably; nothing happens for another device.

    Equal inputs then give equal bits on equal GPUs with equal software. torch warns of an operation
    that has no such form. Products are computed in float32, not in TensorFloat-32.

    Args:
        device: such as ``"cuda:1"``.
    """
    if not device.startswith(f"{GPU}:"):
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    # It costs a kernel for every new tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False  # it would choose kernels by their time
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.cuda.set_device(device)
