import inspect
from dataclasses import dataclass
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rankline.recipes.overrides import Overrides, flags_of, with_options
from rankline.training.config.train import TrainConfig
from rankline.training.models.dlrm import DLRMConfig
from rankline.training.models.mlp import MLPConfig
from rankline.workflows.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class BrewConfig:
    """How to brew.

    Attributes:
        temperature_c: of the water,
            in degrees.
        rinse: wet the filter first.
        sizes: of the cups.
        bean: a variety; None takes what is there.
    """

    temperature_c: float = 92.0
    rinse: bool = True
    sizes: tuple[int, ...] = (1, 2)
    bean: str | None = None


def app(received: list[BrewConfig]) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @with_options(BrewConfig)
    def brew(*, overrides: Overrides) -> None:
        """Brew."""
        received.append(overrides.apply(BrewConfig()))

    return app


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], BrewConfig()),
        (["--temperature-c", "80"], BrewConfig(temperature_c=80.0)),
        (["--no-rinse"], BrewConfig(rinse=False)),
        (["--sizes", "3,4,5"], BrewConfig(sizes=(3, 4, 5))),
        (["--bean", "geisha"], BrewConfig(bean="geisha")),
    ],
)
def test_each_field_is_an_option_and_what_is_not_given_stays(arguments: list[str], expected: BrewConfig) -> None:
    received: list[BrewConfig] = []
    result = CliRunner().invoke(app(received), arguments)
    assert result.exit_code == 0, result.output
    assert received == [expected]


def test_help_comes_from_the_docstring_of_the_class() -> None:
    result = CliRunner().invoke(app([]), ["--help"], terminal_width=120)
    assert "Of the water, in degrees." in result.output
    assert "Brew options" in result.output


def test_defaults_are_those_of_the_config_that_is_given() -> None:
    command = with_options(BrewConfig(sizes=(5,), bean="geisha"))(lambda *, overrides: None)
    app = typer.Typer(rich_markup_mode="markdown")
    app.command()(command)
    output = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert "[default: 5]" in output
    assert "[default: geisha]" in output


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"epochs": 2, "hidden": (3,)}, TrainConfig(epochs=2, model=MLPConfig(hidden=(3,)))),
        ({"model": DLRMConfig(), "top_mlp": (3,)}, TrainConfig(model=DLRMConfig(top_mlp=(3,)))),
    ],
)
def test_options_reach_the_config_that_a_config_holds(values: dict[str, Any], expected: TrainConfig) -> None:
    assert Overrides(values).apply(TrainConfig()) == expected
    assert {"--epochs", "--hidden", "--model"} <= set(flags_of(TrainConfig))


def test_a_list_that_is_none_is_refused() -> None:
    result = CliRunner().invoke(app([]), ["--sizes", "3,four"])
    assert result.exit_code == 2
    assert "expected whole numbers" in " ".join(result.output.split())


def test_a_field_without_documentation_is_a_mistake_of_ours() -> None:
    @dataclass(frozen=True)
    class Silent:
        """Nothing."""

        loud: int = 1

    with pytest.raises(TypeError, match=r"Silent\.loud has no line under 'Attributes:'"):
        with_options(Silent)(lambda *, overrides: None)
    assert "overrides" not in inspect.signature(with_options(BrewConfig)(lambda *, overrides: None)).parameters


def test_a_field_with_the_name_of_another_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="--bean would be two options of this command, by BrewConfig and BrewConfig"):
        with_options(BrewConfig, BrewConfig(rinse=False))(lambda *, overrides: None)
