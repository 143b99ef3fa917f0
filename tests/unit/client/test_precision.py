"""``runtime.precision=bfloat16``: products alone are rounded, one client at a time or together."""

from typing import Any

import numpy as np
import pytest
import torch
from configs import composed
from torch import Tensor, nn

from fl_app.client import LocalTrainer
from fl_app.client.batch import BatchTrainer
from fl_app.client.batchable import obstacle
from fl_app.client.build import build_task, build_trainer
from fl_app.core.types import Order
from fl_app.runner.earlier import settings
from fl_app.runner.validate import validate_config
from fl_app.tasks.models import architecture
from fl_app.tasks.objective import Classification
from fl_app.tasks.task import Task

SIZES = (7, 1, 12)
STARTS = np.cumsum((0, *SIZES))


def task(model: Any = "mlp", **more: Any) -> Task:
    generator = torch.Generator().manual_seed(0)
    shape = (1, 8, 8)
    return Task(
        name="few",
        objective=Classification(3, **more),
        architecture=architecture(model, shape, 3) if isinstance(model, str) else model,
        inputs=torch.randn(int(STARTS[-1]), *shape, generator=generator),
        targets=torch.arange(int(STARTS[-1])) % 3,
        partition=[np.arange(*STARTS[i : i + 2]) for i in range(len(SIZES))],
    )


def trainer(data: Task, precision: str, **more: Any) -> LocalTrainer:
    return LocalTrainer(
        data, **{"batch_size": 5, "local_epochs": 2, "precision": precision, **more}
    )


def orders(of: LocalTrainer) -> list[Order]:
    start = of.model.read()
    return [Order(i, i, 0, 0, start, {"version": 0}, 0.0) for i in range(len(SIZES))]


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("upload", ["delta", "gradient"])
def test_uploads_are_near_those_of_float32_and_are_float32(model: str, upload: str) -> None:
    data = task(model)
    exact, low = (trainer(data, name, upload=upload) for name in ("float32", "bfloat16"))
    assert obstacle(low) == ""
    given = orders(exact)
    together = BatchTrainer(low).train(given, [None] * len(given))
    for order, batched in zip(given, together, strict=True):
        expected, alone = exact.train(order), low.train(order)
        assert batched is not None
        scale = float(np.abs(expected.vector).max())
        for one in (alone, batched):
            assert one.vector.dtype == np.float32
            assert one.vector.tobytes() != expected.vector.tobytes()
            np.testing.assert_allclose(one.vector, expected.vector, atol=0.05 * scale)
            assert one.loss == pytest.approx(expected.loss, rel=0.02)
    assert {p.dtype for p in low.model.params} == {torch.float32}


def test_a_layers_product_is_rounded_and_the_loss_is_not() -> None:
    seen = []

    class Noting(nn.Linear):
        def forward(self, images: Tensor) -> Tensor:
            output = super().forward(images.flatten(1))
            seen.append(("product", output.dtype))
            return output

    def criterion(output: Tensor, target: Tensor) -> Tensor:
        seen.append(("loss", output.dtype))
        return nn.functional.cross_entropy(output, target)

    data = task(lambda: Noting(64, 3), criterion=criterion)
    for precision in ("float32", "bfloat16"):
        low = trainer(data, precision, local_steps=1)
        seen.clear()
        low.train(orders(low)[0])
        assert seen == [("product", getattr(torch, precision)), ("loss", torch.float32)]


def test_the_penalty_of_a_subclass_is_mixed_too() -> None:
    seen = []

    class Penalised(LocalTrainer):
        def penalty(self, params: Any, received: Any) -> Tensor:
            del received
            product = params[0] @ params[0].T
            seen.append(product.dtype)
            return product.float().square().mean()

    low = Penalised(task(), local_steps=1, precision="bfloat16")
    assert low.train(orders(low)[0]).vector.dtype == np.float32
    assert seen == [torch.bfloat16]


def test_the_whole_configuration_comes_to_it() -> None:
    config = composed("algorithm=moon", "runtime.precision=bfloat16")
    validate_config(config)
    assert build_trainer(config, build_task(config)).processor.precision == "bfloat16"


def test_what_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^runtime\.precision=bfloat16 .* runtime\.device=meta"):
        trainer(task(), "bfloat16", device="meta")
    with pytest.raises(
        ValueError, match=r"^runtime\.precision=half must be one of float32, bfloat"
    ):
        trainer(task(), "half")
    with pytest.raises(ValueError, match=r"^runtime\.precision=fp8 must be one of float32, bfloat"):
        validate_config(composed("runtime.precision=fp8"))


def test_a_run_of_another_precision_is_not_resumed() -> None:
    low, usual = settings(composed("runtime.precision=bfloat16")), settings(composed())
    assert low.pop("runtime.precision") == "bfloat16"
    assert low == usual
