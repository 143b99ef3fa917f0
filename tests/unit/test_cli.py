"""The command line: suggestions for refused overrides, help, and keys of classes."""

import os
import subprocess
import sys

import hydra
import pytest
from helpers import status_of
from hydra.errors import HydraException
from omegaconf import OmegaConf

from fl_app.__main__ import main
from fl_app.cli import CONF, compose, explain, groups, refuse_dots, search_path
from fl_app.client.build import instantiate
from fl_app.help import help_on
from fl_app.runner.validate import build_schedule
from fl_app.targets import keys, parameter_docs
from lab.docs.reference import rows


def complaint(*overrides):
    with (
        hydra.initialize_config_dir(str(CONF), version_base="1.3"),
        pytest.raises(HydraException) as error,
    ):
        hydra.compose("config", overrides=[word for word in overrides if word[0] != "-"])
    return explain(error.value, overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        # The nearest key is in one of the chosen groups.
        ("algorithm=fedasync algorithm.strategy.mixin=", "did you mean algorithm.strategy.mixing"),
        ("experiment=wkafl_mnist partition.num_label=5", "; did you mean partition.num_labels"),
        ("algorithm/schedule=random_k algorithm.schedule.sead=1", "mean algorithm.schedule.seed"),
        ("algorithm.strategy.sever_lr=1", "; did you mean algorithm.strategy.server_lr"),
        # For the end of a key, the error names the whole key, or the options that have it.
        ("algorithm=fedhist fusion=0.2", "; did you mean algorithm.strategy.fusion?"),
        ("schedule.concurrency=3", "'schedule.concurrency'; did you mean algorithm.schedule.con"),
        ("fusion=0.2", "; algorithm.strategy.fusion is a key of algorithm=cana, fedhist"),
        ("partition=iid alpha=1", "; partition.alpha is a key of partition=dirichlet, flwr, sl"),
        ("experiment=fedhist_cifar10 algorithm.client.contrast=1", "is a key of algorithm=moon"),
        ("algorithm/lr_schedule=linear", "unknown key 'algorithm/lr_schedule'"),
        ("algorithm.client._target_=fl_app.client.LocalTrainer algorithm.client.seed=1", "as +"),
    ],
)
def test_the_error_of_an_unknown_key_suggests_keys(overrides, message):
    assert message in complaint(*overrides.split())


def test_a_key_that_some_options_of_a_sweep_have_is_not_suggested_for_itself():
    key = "algorithm.schedule.concurrency=3"
    with pytest.raises(ValueError, match="concurrency") as error:
        compose(["algorithm=fedavg", key])
    cause = error.value.__context__
    assert isinstance(cause, HydraException)
    message = explain(cause, ["algorithm=fedbuff,fedavg", key])
    assert message.endswith("with one of the swept options: sweep that option separately")


@pytest.mark.parametrize("schedule", ["buffered", "k_async", "fully_async", "synchronous"])
def test_few_clients_all_work(schedule):
    """A federation smaller than the defaults needs no further keys."""
    config = compose([f"algorithm/schedule={schedule}", "num_clients=6"])
    build_schedule(config).validate_population(6)
    keys = config.algorithm.schedule
    assert keys.get("concurrency", keys.get("buffer_size")) == 6


@pytest.mark.parametrize("choice", ["algorithm.schedule=buffered", "+devices.network=link"])
def test_a_dot_where_a_slash_chooses(choice):
    with pytest.raises(ValueError, match=f"must be {choice.lstrip('+').replace('.', '/')}: "):
        refuse_dots(["algorithm=fedbuff", choice])
    refuse_dots(["algorithm.schedule.buffer_size=5", "algorithm.schedule={buffer_size: 5}"])


def test_signs_that_need_quotes():
    with pytest.raises(ValueError, match="'max_updates' must be one KEY=VALUE without spaces"):
        compose(["max_updates", "=", "20"])
    message = "task.separator=; cannot be read: quote it for Hydra and for the shell, "
    assert complaint("task=csv", "task.separator=;") == f"{message}\"task.separator=';'\""
    assert compose(["task=csv", "task.separator=';'"]).task.separator == ";"
    list_message = complaint("task=csv", "task.target=[ill,größe in cm]")
    assert list_message.endswith("for the shell, \"task.target=['ill','größe in cm']\"")
    for word, quoted in (
        ("path=my tables/it's (1).csv", r"path='my tables/it\'s (1).csv'"),
        ("target=bp [mmHg]", "target='bp [mmHg]'"),
        ("ignore=[age,bp [mmHg]]", "ignore=['age','bp [mmHg]']"),
    ):
        assert complaint("task=csv", f"task.{word}").endswith(f'shell, "task.{quoted}"')
        compose(["task=csv", f"task.{quoted}"])
    with pytest.raises(ValueError, match=r"^seed=1,2 has several values.*; a list is seed=\[1,2\]"):
        compose(["seed=1,2"])
    with pytest.raises(ValueError, match=r"'search\.space=seed=interval\(1,2\)' searches them"):
        compose(["seed=interval(1,2)"])


def test_a_key_of_an_earlier_version_is_answered_with_the_one_in_its_place():
    with pytest.raises(ValueError, match=r"give algorithm\.strategy\.compensation_form="):
        compose(["algorithm=overlap_fedavg", "algorithm.strategy.squares=code"])


# -- --help, --version and completion -------------------------------------------------------------


def test_help_tells_examples_groups_and_keys(capsys):
    assert status_of(main, "--help") == 0
    text = capsys.readouterr().out
    assert "fl-app experiment=quickstart" in text
    for group in groups():
        assert f"  {group}= " in text
    assert "num_versions=100" in text
    assert "published model versions after which a run ends" in " ".join(text.split())
    assert "hydra:" not in text


@pytest.mark.parametrize("group", sorted(groups()))
def test_every_option_has_an_explanation(group):
    lines = help_on([group]).splitlines()[2:]
    starts = [line.split(maxsplit=1) for line in lines if line[2] != " "]
    assert sorted(start[0] for start in starts) == sorted(
        path.stem for path in (CONF / group).glob("*.yaml")
    )
    assert [start for start in starts if len(start) < 2] == []


def test_help_on_an_option_has_the_texts_of_its_class_and_its_file():
    text = help_on(["algorithm=fedhist"])
    line = " ".join(text.split())
    assert "schedule: k_async" in line
    assert "algorithm.strategy.fusion=0.3 alpha, how much of the most opposite past step" in line
    assert "server_lr: 0.35 # [A] " in line
    assert "upload: pseudo" in line


@pytest.mark.parametrize(
    ("word", "suggestion"), [("device", "devices"), ("task=digit", "did you mean digits")]
)
def test_help_on_nothing_known(capsys, word, suggestion):
    assert status_of(main, "--help", word) == 2
    assert suggestion in capsys.readouterr().err


def test_bash_completes_groups_and_keys(tmp_path):
    program = tmp_path / "fl-app"
    program.write_text(f"#!{sys.executable}\nfrom fl_app.__main__ import console\nconsole()\n")
    program.chmod(0o755)
    script = """
        eval "$(fl-app --shell-completion install=bash)"
        complete -p fl-app
        for COMP_LINE in "fl-app algorithm=fedb" "fl-app num_v"; do
            COMP_WORDS=($COMP_LINE) COMP_CWORD=1
            hydra_bash_completion
            echo "${COMPREPLY[@]}"
        done
    """
    process = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    command, algorithms, keys = process.stdout.splitlines()
    assert "-F hydra_bash_completion fl-app" in command
    assert "algorithm=fedbuff" in algorithms.split()
    assert "num_versions=" in keys.split()


# -- keys of classes: /target@KEY in a file of options --------------------------------------------

MINE = '''
class Base:
    """A base.

    Args:
        rate: of the steps,
            above 0.
    """


class Mine(Base):
    """Its own.

    Attributes:
        names: what it is
            called.

    Raises:
        nothing: ever.
    """

    def __init__(self, needed, *, rate=0.5, names=("a",), seed=0):
        pass
'''
OPTION = """
defaults:
  - /target@strategy: mine_of_test.Mine
  - client: sgd
  - _self_
  - schedule: buffered

name: mine

strategy:
  rate: 0.25
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    folder = tmp_path / "my options"
    (folder / "algorithm").mkdir(parents=True)
    (folder / "mine_of_test.py").write_text(MINE)
    (folder / "algorithm/mine.yaml").write_text(OPTION)
    monkeypatch.syspath_prepend(folder)
    return folder


def test_defaults_are_the_keys_of_a_users_own_class(own):
    assert keys("target/mine_of_test.Mine") == {
        "_target_": "mine_of_test.Mine",
        "rate": 0.5,
        "names": ("a",),
    }
    assert parameter_docs("target/mine_of_test.Mine") == {
        "rate": "of the steps, above 0.",
        "names": "what it is called.",
    }
    assert keys("keys/mine_of_test.Mine") == {"rate": 0.5, "names": ("a",), "seed": 0}
    strategy = compose([search_path([str(own)]), "algorithm=mine"]).algorithm.strategy
    assert strategy == {"_target_": "mine_of_test.Mine", "rate": 0.25, "names": ["a"]}
    with pytest.raises(ValueError, match=r"'algorithm.strategy.ratio'; did you mean .*rate"):
        compose([search_path([str(own)]), "algorithm=mine", "algorithm.strategy.ratio=1"])
    (own / "algorithm/mine.yaml").write_text("name: [a\n  b: c")
    with pytest.raises(ValueError, match=r"expected ',' or '\]'.*\n.*mine\.yaml\", line 2"):
        compose([search_path([str(own)]), "algorithm=mine"])
    assert status_of(main, f"--config-dir={own}", "algorithm=mine") == 2


def test_a_users_options_are_in_help_and_among_suggestions(own, capsys):
    folder = f"--config-dir={own}"
    assert "mine" in help_on([folder, "algorithm"])
    text = help_on(["--config-dir", str(own), "algorithm=mine"])
    assert "algorithm.strategy.rate=0.5\n    of the steps, above 0." in text
    assert " mine" in help_on([folder]).replace(",", "")
    assert status_of(main, folder, "algorithm=min") == 2
    assert "did you mean mine" in capsys.readouterr().err
    (own / "algorithm/fedbuff.yaml").write_text("name: other")
    assert status_of(main, folder, "algorithm=fedbuff") == 2
    assert "fedbuff.yaml has the name of an option of this project" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["my-own", "mine/deep"])
def test_algorithms_of_ones_own_may_be_chosen(name, own):
    path = own / f"algorithm/{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(OPTION.replace("name: mine", f"name: {path.stem}"))
    assert compose([search_path([str(own)]), f"algorithm={name}"]).algorithm.name


def test_an_option_of_another_name_than_its_file_is_refused(own):
    (own / "algorithm/other.yaml").write_text(OPTION)
    with pytest.raises(ValueError, match=r"other\.yaml says name: mine, and must say name: other"):
        compose([search_path([str(own)]), "algorithm=other"])
    overrides = [search_path([str(own)]), "algorithm=other", "algorithm.name=x"]
    assert compose(overrides).algorithm.name == "x"


def test_a_choice_of_clients_that_changes_nothing_is_refused():
    with pytest.raises(ValueError, match=r"sgd would change nothing: .*FedASMUTrainer, takes"):
        compose(["algorithm=fedasmu", "algorithm/client=sgd"])
    compose(["algorithm=fedbuff", "algorithm/client=sgd"])


def test_the_error_of_a_missing_class_names_it():
    with pytest.raises(ValueError, match=r"_target_=fl_app\.none\.None cannot be imported"):
        keys("target/fl_app.none.None")
    with pytest.raises(ValueError, match=r"devices\._target_ is missing"):
        instantiate(OmegaConf.create({"devices": {"ratio": 3}}).devices)


def test_every_key_of_a_class_is_explained():
    unexplained = [
        (path.stem, key)
        for path in CONF.rglob("*.yaml")
        if "/target@" in path.read_text() or "/keys@" in path.read_text()
        for key, (_, text) in rows(path.read_text()).items()
        if not text and not key.endswith("_target_") and not key.startswith("client.")
    ]
    assert unexplained == []
