"""NumPy computes what torch computes: the same draws, the same uploads to float tolerance.

Every case trains two orders of one client with each backend, from the same model. The client's ten
examples give three batches an epoch, the last of two examples.
"""

from pathlib import Path
from typing import Any

import numpy as np
import own_files
import pytest
from configs import composed
from helpers import order_for

from fl_app.algorithms.aso_fed import ASOFedTrainer
from fl_app.algorithms.feddyn import FedDynTrainer
from fl_app.algorithms.moon import MOONTrainer
from fl_app.algorithms.overlap_fedavg import OverlapTrainer
from fl_app.algorithms.scaffold import CONTROL, SCAFFOLDTrainer
from fl_app.client import LocalTrainer
from fl_app.client.build import build_task, build_trainer
from fl_app.client.trainer import backend_of_task, build_model, computable
from fl_app.core.types import KINDS, Upload
from fl_app.runner.validate import validate_config
from fl_app.tasks.models.plain import PLANS
from fl_app.tasks.partition import Iid
from fl_app.tasks.synthetic import synthetic

SHAPES = {
    **dict.fromkeys(PLANS, (1, 28, 28)),
    "cnn": (2, 9, 11),
    "cnn_celeba": (3, 84, 84),
    "cnn_asmu": (3, 7, 6),
    "cnn_cifar": (3, 32, 32),
}
SEED = 7


def task(backend: str, model: str, shape: tuple[int, ...] | None = None) -> Any:
    return synthetic(
        partition=Iid(),
        num_clients=2,
        seed=SEED,
        model=model,
        shape=shape or SHAPES[model],
        num_examples=20,
        num_test=11,
        backend=backend,
    )


def orders(
    backend: str, model: str, trainer: type[LocalTrainer], config: Any, extra: Any, settings: Any
) -> list[Upload]:
    """The uploads of client 1 for two orders, the second from another model and state."""
    made = trainer(task(backend, model), seed=SEED, **settings)
    uploads, state = [], {}
    received = build_model(task("numpy", model), SEED).read()
    for sequence in range(2):
        order = order_for(1, sequence, received, {"version": 3, **config}, state, extra)
        uploads.append(made.sender.train(order))
        received, state = received * np.float32(0.9), uploads[-1].state
    return uploads


def assert_same(
    model: str,
    trainer: type[LocalTrainer] = LocalTrainer,
    config: Any = None,
    extra: Any = None,
    atol: float = 2e-5,
    **settings: Any,
) -> None:
    settings = {"batch_size": 4, "local_lr": 0.05, **settings}
    both = [
        orders(backend, model, trainer, config or {}, extra or {}, settings)
        for backend in ("torch", "numpy")
    ]
    for torchs, numpys in zip(*both, strict=True):
        assert numpys.vector.dtype == np.float32
        np.testing.assert_allclose(numpys.vector, torchs.vector, rtol=1e-3, atol=atol)
        assert numpys.loss == pytest.approx(torchs.loss, rel=1e-4)
        for name in ("kind", "num_examples", "rate_sum", "base_version", "done"):
            assert getattr(numpys, name) == getattr(torchs, name), name
        assert numpys.state.keys() == torchs.state.keys()
        for key, array in torchs.state.items():
            np.testing.assert_allclose(numpys.state[key], array, rtol=1e-3, atol=atol)
        assert numpys.extra.keys() == torchs.extra.keys()
        for key, vector in torchs.extra.items():
            np.testing.assert_allclose(numpys.extra[key], vector, rtol=1e-3, atol=atol)


@pytest.mark.parametrize("model", PLANS)
def test_both_build_the_same_model(model: str) -> None:
    torchs, numpys = (build_model(task(backend, model), SEED) for backend in ("torch", "numpy"))
    assert numpys.layout == torchs.layout
    np.testing.assert_array_equal(numpys.read(), torchs.read())


@pytest.mark.parametrize("model", PLANS)
def test_gradients_of_all_models(model: str) -> None:
    """As vectors: of many windows, in some two entries are so close that rounding decides."""
    settings = {"batch_size": 4, "upload": "gradient"}
    torchs, numpys = (
        orders(backend, model, LocalTrainer, {}, {}, settings) for backend in ("torch", "numpy")
    )
    for expected, found in zip(torchs, numpys, strict=True):
        error = np.linalg.norm(found.vector - expected.vector)
        assert error <= 1e-3 * np.linalg.norm(expected.vector)
        assert found.loss == pytest.approx(expected.loss, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["logistic", "mlp", "lenet"])
def test_all_kinds_of_uploads(model: str, kind: str) -> None:
    assert_same(model, upload=kind, local_epochs=2)


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"proximal": 0.5},
        {"lr_decay": 0.7},
        {"max_grad_norm": 0.01},
        {"local_steps": 5},
        {"batch_size": 100},
        {"config": {"proximal-mu": 0.3, "local_epochs": 3, "local_lr_factor": 0.5}},
        {
            "momentum": 0.5,
            "weight_decay": 0.01,
            "proximal": 0.2,
            "lr_decay": 0.9,
            "max_grad_norm": 1.0,
            "local_epochs": 2,
        },
    ],
    ids=lambda settings: "-".join(settings),
)
@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_all_settings(model: str, settings: dict[str, Any]) -> None:
    assert_same(model, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision(kind: str) -> None:
    assert_same("mlp", upload=kind, upload_dtype="float16", atol=2e-3)


def test_top_k_with_its_residual() -> None:
    assert_same("mlp", upload="delta", top_k=0.1, upload_dtype="float16", atol=2e-3)


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_the_trainers_of_algorithms(model: str) -> None:
    size = build_model(task("numpy", model), SEED).layout.size
    control = np.linspace(-0.01, 0.01, size, dtype=np.float32)
    settings: Any = {"local_epochs": 2, "atol": 2e-4}
    assert_same(model, SCAFFOLDTrainer, extra={CONTROL: control}, **settings)
    assert_same(model, FedDynTrainer, {"regularisation": 0.1, "mean_examples": 8.0}, **settings)
    assert_same(model, ASOFedTrainer, {"regularisation": 0.1, "decay": 0.4}, **settings)
    assert_same(model, OverlapTrainer, upload="delta", **settings)


def test_every_class_says_what_can_compute_it() -> None:
    class Silent(LocalTrainer):
        """Its hooks may compute with tensors."""

    assert computable(LocalTrainer) == computable(SCAFFOLDTrainer) == ["torch", "numpy"]
    assert computable(Silent) == computable(MOONTrainer) == ["torch"]
    with pytest.raises(
        ValueError, match=r"runtime\.backend=numpy must be torch or auto with Silent"
    ):
        Silent(task("numpy", "mlp"))


def test_private_and_frozen_parameters() -> None:
    both = []
    for backend in ("torch", "numpy"):
        overrides = (f"runtime.backend={backend}", "num_clients=5", "task.trainable=[*.weight]")
        config = composed("algorithm=fedavg", *overrides, "algorithm.client.private=[3.weight]")
        trainer = build_trainer(config)
        assert trainer.model.layout.names == ["1.weight"]
        assert set(trainer.model.fixed_bytes()) == {"1.bias", "3.bias", "3.weight"}
        upload = trainer.sender.train(order_for(2, 0, trainer.model.read(), {}))
        both.append((trainer.model.fixed_digest, upload))
    (first, torchs), (second, numpys) = both
    assert first == second
    np.testing.assert_allclose(numpys.vector, torchs.vector, rtol=1e-3, atol=1e-5)
    (name,) = torchs.state
    np.testing.assert_allclose(numpys.state[name], torchs.state[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("form", ["csv", "image_folder", "arrays"])
def test_data_of_a_users_own(form: str, tmp_path: Path) -> None:
    words = own_files.ALL[form](tmp_path)
    both = []
    for backend in ("torch", "numpy"):
        clients = f"num_clients={own_files.CLIENTS}"
        config = composed("algorithm=fedbuff", *words, clients, f"runtime.backend={backend}")
        trainer = build_trainer(config)
        assert backend_of_task(trainer.task) == backend
        upload = trainer.sender.train(order_for(1, 0, trainer.model.read(), {}))
        both.append((trainer.model.layout, trainer.task.test(trainer.model.module), upload))
    (layout, tested, torchs), (layout2, tested2, numpys) = both
    assert layout2 == layout
    assert tested2 == pytest.approx(tested, rel=1e-4)
    assert np.linalg.norm(torchs.vector) > 0
    np.testing.assert_allclose(numpys.vector, torchs.vector, rtol=1e-3, atol=2e-5)
    assert numpys.loss == pytest.approx(torchs.loss, rel=1e-4)


@pytest.mark.parametrize("model", ["logistic", "cnn"])
@pytest.mark.parametrize("scaling", ["unit", "raw255", "standardised"])
def test_evaluations_agree(model: str, scaling: str) -> None:
    both = []
    for backend in ("torch", "numpy"):
        overrides = (f"task.model={model}", f"task.scaling={scaling}", "task.holdout=0.3")
        made = build_task(composed("num_clients=5", f"runtime.backend={backend}", *overrides))
        network = build_model(made, SEED).module
        both.append((made.test(network, recall=True), *made.evaluate(network, 3)))
    (tested, evaluated, count), (tested2, evaluated2, count2) = both
    assert tested2 == pytest.approx(tested, rel=1e-4)
    assert evaluated2 == pytest.approx(evaluated, rel=1e-4)
    assert count2 == count > 0


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["algorithm=moon"], r"algorithm\.client\._target_=fl_app\.algorithms\.moon\.MOONTrainer"),
        (["algorithm=fedasmu"], r"algorithm\.client\._target_"),
        (["task=cifar10", "task.model=resnet20"], r"task\.model=resnet20"),
        (["task=cifar10", "task.model=lenet", "task.augment=crop_flip"], r"task\.augment"),
        (["task=wikitext2"], r"task\._target_"),
    ],
)
def test_what_needs_torch_is_refused_by_its_key(overrides: list[str], named: str) -> None:
    config = composed(*overrides, "runtime.backend=numpy")
    with pytest.raises(ValueError, match=named + ".* needs torch"):
        validate_config(config)


def test_first_weights_of_a_file_are_refused(tmp_path: Path) -> None:
    """torch reads these files; with another backend a run would begin from random weights."""
    file = tmp_path / "a.pt"
    file.write_bytes(b"never read")
    config = composed("runtime.backend=numpy", f"task.weights={file}")
    said = (
        rf"task\.weights={file} must be null with runtime\.backend=numpy: torch reads these files"
    )
    with pytest.raises(ValueError, match=said):
        validate_config(config)
    with pytest.raises(ValueError, match=said):
        build_model(task("numpy", "mlp"), SEED, weights=str(file))


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match=r"runtime\.backend=jax must be one of auto, torch, numpy"):
        validate_config(composed("runtime.backend=jax"))


def test_numpy_computes_on_the_processor() -> None:
    with pytest.raises(ValueError, match=r"runtime\.device=cuda must be cpu or auto"):
        build_trainer(composed("runtime.backend=numpy", "runtime.device=cuda"))


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "weight_decay": 0.1}])
def test_training_that_diverges_warns_nobody(settings: dict[str, Any]) -> None:
    """The server refuses the upload and says why; NumPy's own warnings would say it again."""
    made = LocalTrainer(task("numpy", "mlp"), seed=SEED, local_lr=1e30, local_epochs=3, **settings)
    received = build_model(task("numpy", "mlp"), SEED).read()
    upload = made.train(order_for(1, 0, received, {}))
    assert not np.isfinite(upload.vector).all()
    made.model.load(upload.vector)
    made.task.evaluate(made.model.module, 1)
