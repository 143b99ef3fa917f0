"""The jobs of a sweep are called after what was varied, and their seeds share a label."""

import pytest
from omegaconf import OmegaConf
from run_folders import ROUNDS, write_cell

from fl_app.report.cells import Cell
from fl_app.report.naming import matches, name_jobs, settings_of, shortest
from fl_app.report.reading import read_run

CONFIG = {
    "algorithm": {"name": "fedasync", "client": {"local_lr": 0.1}, "strategy": {"alpha": 0.6}},
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "seed": 0,
}


def job(number, algorithm="fedasync", **overrides):
    overrides = {key.replace("__", "."): value for key, value in overrides.items()}
    config = OmegaConf.create(CONFIG)
    config.algorithm.name = algorithm
    for key, value in overrides.items():
        if key not in ("algorithm", "partition"):
            OmegaConf.update(config, key, value)
    return Cell(
        name=str(number),
        algorithm=algorithm,
        on_wall_clock=False,
        summary={},
        seed=config.seed,
        folder=str(number),
        config=OmegaConf.to_yaml(config),
        overrides=overrides,
    )


def named(*jobs):
    name_jobs(jobs)
    return [(each.name, each.label) for each in jobs]


def test_names_have_what_was_varied_and_labels_leave_out_the_seed():
    common = {"num_versions": 20}
    jobs = [
        job(number, seed=seed, algorithm__client__local_lr=rate, **common)
        for number, (rate, seed) in enumerate([(0.05, 0), (0.05, 1), (0.1, 0), (0.1, 1)])
    ]
    assert named(*jobs) == [
        ("fedasync local_lr=0.05 seed=0", "fedasync local_lr=0.05"),
        ("fedasync local_lr=0.05 seed=1", "fedasync local_lr=0.05"),
        ("fedasync local_lr=0.1 seed=0", "fedasync local_lr=0.1"),
        ("fedasync local_lr=0.1 seed=1", "fedasync local_lr=0.1"),
    ]


def test_algorithms_tell_themselves_apart_unless_two_share_a_name():
    jobs = [job(0, algorithm="fedasync"), job(1, "fedbuff")]
    jobs[1].overrides = {"algorithm": "fedbuff"}
    jobs[0].overrides = {"algorithm": "fedasync"}
    assert named(*jobs) == [("fedasync", "fedasync"), ("fedbuff", "fedbuff")]
    jobs.append(job(2))
    jobs[2].overrides = {"algorithm": "my_fedasync"}
    assert [label for _, label in named(*jobs)] == [
        "fedasync algorithm=fedasync",
        "fedbuff algorithm=fedbuff",
        "fedasync algorithm=my_fedasync",
    ]


def test_keys_are_as_short_as_no_other_key_ends():
    jobs = [job(n, partition__alpha=alpha) for n, alpha in enumerate((0.5, 1))]
    assert [name for name, _ in named(*jobs)] == [
        "fedasync partition.alpha=0.5",
        "fedasync partition.alpha=1",
    ]
    known = settings_of(jobs[0])
    assert shortest("algorithm.client.local_lr", known) == "local_lr"
    assert shortest("algorithm.name", known) == "algorithm.name"
    assert shortest("seed", known) == "seed"
    assert matches("alpha", known) == ["algorithm.strategy.alpha", "partition.alpha"]
    assert matches("lr", known) == []


def test_the_end_of_a_key_that_is_one_of_its_own_is_not_its_short_name():
    known = ("seed", "partition.seed")
    assert shortest("partition.seed", known) == "partition.seed"
    assert matches("seed", known) == ["seed"]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((0.03745401188473625, 0.1), ("0.037454", "0.1")),
        ((0.12345678, 0.12345679), ("0.12345678", "0.12345679")),
        ((None, 4), ("null", "4")),
        ((True, False), ("true", "false")),
        (("iid", "shards"), ("iid", "shards")),
        (([1, 2], [3]), ("[1, 2]", "[3]")),
    ],
)
def test_values_are_written_as_they_are_given(values, texts):
    jobs = [job(n, partition__x=value) for n, value in enumerate(values)]
    assert [name for name, _ in named(*jobs)] == [f"fedasync x={text}" for text in texts]


def test_a_job_without_an_override_has_what_its_configuration_says():
    jobs = [job(0, algorithm__client__local_lr=0.5), job(1, num_versions=9)]
    assert [name for name, _ in named(*jobs)] == [
        "fedasync local_lr=0.5",
        "fedasync local_lr=0.1 num_versions=9",
    ]


def test_jobs_that_nothing_tells_apart_are_numbered():
    same = {"algorithm__client__local_lr": 0.1}
    assert named(job(0, **same), job(1, **same), job(2, algorithm__client__local_lr=1)) == [
        ("fedasync local_lr=0.1 0", "fedasync local_lr=0.1 0"),
        ("fedasync local_lr=0.1 1", "fedasync local_lr=0.1 1"),
        ("fedasync local_lr=1", "fedasync local_lr=1"),
    ]


def test_jobs_whose_overrides_are_lost_are_numbered():
    assert named(job(3), job(12)) == [("fedasync 3", "fedasync 3"), ("fedasync 12", "fedasync 12")]


def write_job(sweep, number, *overrides, **files):
    """A job as the run leaves it."""
    folder = sweep / str(number)
    folder.mkdir(parents=True)
    config = {"algorithm": {"name": "fedbuff", "client": {"local_lr": 0.1}}, "seed": 0}
    config = OmegaConf.merge(config, OmegaConf.from_dotlist(list(overrides)))
    OmegaConf.save(config, folder / "config.yaml")
    OmegaConf.save(OmegaConf.create(list(overrides)), folder / "overrides.yaml")
    write_cell(folder, events=ROUNDS, **files)


def test_a_sweeps_folder_is_read_in_the_order_of_its_jobs(tmp_path):
    rates = ["0.05", "0.1", "1"]
    for number in range(12):
        rate, seed = rates[number // 4], number % 4
        write_job(tmp_path, number, f"algorithm.client.local_lr={rate}", f"seed={seed}")
    cells = read_run(tmp_path)
    assert [cell.folder for cell in cells] == [str(number) for number in range(12)]
    assert list(dict.fromkeys(cell.label for cell in cells)) == [
        f"fedbuff local_lr={rate}" for rate in rates
    ]
    assert [cell.seed for cell in cells] == [0, 1, 2, 3] * 3


def test_an_interrupted_sweep_is_named_like_a_whole_one(tmp_path):
    """The second job had only begun, the third not even that."""
    write_job(tmp_path, 0, "algorithm.client.local_lr=0.05", summary={"stopped": "num_versions"})
    write_job(tmp_path, 1, "algorithm.client.local_lr=0.1")
    (tmp_path / "2").mkdir()
    assert [(cell.name, cell.stopped) for cell in read_run(tmp_path)] == [
        ("fedbuff local_lr=0.05", "num_versions"),
        ("fedbuff local_lr=0.1", ""),
    ]


def test_runs_that_the_user_named_keep_their_names(tmp_path):
    for name in ("mine", "yours"):
        write_job(tmp_path, name, "seed=3")
    assert [cell.name for cell in read_run(tmp_path)] == ["mine", "yours"]


def test_cells_of_experiments_in_a_sweep_have_what_was_varied_behind_their_names(tmp_path):
    for number, alpha in enumerate(("0.1", "1")):
        for name in ("fast-seed0", "fast-seed3", "slow"):
            folder = tmp_path / str(number) / name
            write_cell(folder, events=ROUNDS, algorithm="fedbuff")
            given = ["experiment=quickstart", f"partition.alpha={alpha}"]
            OmegaConf.save(OmegaConf.create(given), folder / "overrides.yaml")
            with (folder / "config.yaml").open("a") as file:
                file.write(f"seed: {name[-1] if name[-1].isdigit() else 0}\n")
    assert [(cell.name, cell.label, cell.folder) for cell in read_run(tmp_path)] == [
        ("fast alpha=0.1 seed=0", "fast alpha=0.1", "0/fast-seed0"),
        ("fast alpha=0.1 seed=3", "fast alpha=0.1", "0/fast-seed3"),
        ("slow alpha=0.1", "slow alpha=0.1", "0/slow"),
        ("fast alpha=1 seed=0", "fast alpha=1", "1/fast-seed0"),
        ("fast alpha=1 seed=3", "fast alpha=1", "1/fast-seed3"),
        ("slow alpha=1", "slow alpha=1", "1/slow"),
    ]


def test_jobs_whose_overrides_hydra_alone_wrote_are_named(tmp_path):
    for number in range(2):
        write_job(tmp_path, number, f"algorithm.client.local_lr={number}")
        hydra = tmp_path / str(number) / ".hydra"
        hydra.mkdir()
        (tmp_path / str(number) / "overrides.yaml").rename(hydra / "overrides.yaml")
    names = [cell.name for cell in read_run(tmp_path)]
    assert names == ["fedbuff local_lr=0", "fedbuff local_lr=1"]
