"""Parts of the reference that are read from the program, as Markdown."""

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

from rankline.cli.main import app
from rankline.cli.options.help import HelpGroup
from rankline.recipes.overrides import description_of
from rankline.recipes.recipe_file import recipe_schema
from rankline.serving.loadtest.report.report import FORMAT_VERSION, BenchmarkReport, LoadResult
from rankline.serving.loadtest.runs import Floor, Load, SearchResult
from rankline.serving.loadtest.server_breakdown import Breakdown, ServerResources, StepTimes
from rankline.serving.loadtest.stats.metrics import METRICS as MEASURED
from rankline.serving.loadtest.stats.metrics import Metric
from rankline.training.evaluation import METRICS
from rankline.training.models import MODELS

_EXAMPLES = re.compile(r"\*\*Examples?\*\*\s*(.*)", re.DOTALL)


def verbs() -> str:
    """A list of the commands by purpose, then what each does, its arguments and options, and examples."""
    group: Any = typer.main.get_command(app)
    rows = [
        (purpose, f"[`{name}`](#{name})", words)
        for purpose, commands in HelpGroup.purposes.items()
        for name, words in commands
    ]
    parts = (_verb(name, verb) for name, verb in group.commands.items() if not verb.hidden)
    return "\n\n".join([_table(("for", "command", "what it does"), rows), *parts])


def _verb(name: str, verb: Any) -> str:
    text = inspect.cleandoc(verb.help or "")
    examples = _EXAMPLES.search(text)
    context = verb.context_class(verb, info_name=f"rankline {name}")
    usage = " ".join(["rankline", name, *verb.collect_usage_pieces(context)])
    options = [parameter for parameter in verb.params if not getattr(parameter, "hidden", False)]
    return "\n\n".join(
        [
            f"## {name}",
            _EXAMPLES.sub("", text).strip(),
            _block([usage]),
            _table(("", ""), [(_flags(option), _said(option, context)) for option in options if option.name != "help"]),
            _block(line.strip() for line in (examples[1] if examples else "").splitlines() if line.strip()),
        ]
    ).strip()


def _flags(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    return ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))


def _said(parameter: Any, context: Any) -> str:
    default = parameter.get_default(context, call=False)
    is_plain = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    return " ".join(filter(None, [parameter.help, f"[default: `{default}`]" if is_plain else ""]))


def recipe_file() -> str:
    """Every key of `rankline.yaml`."""
    schema = recipe_schema()
    named = {"": schema, **schema["$defs"]}
    models = [way for way in schema["properties"]["model"]["anyOf"] if "properties" in way]
    parts = [_keys(_places(schema).get(name, ""), part) for name, part in named.items()]
    of_models = [_keys(f"model: {way['properties']['name']['const']}", way) for way in models]
    return "\n\n".join([*parts, *of_models])


def _places(schema: Mapping[str, Any]) -> dict[str, str]:
    """Name of a definition → where it stands in the file."""
    return {
        found[1]: f"{key}{'.NAME' if 'additionalProperties' in value else ''}"
        for key, value in schema["properties"].items()
        if (found := re.search(r"#/\$defs/(\w+)", str(value)))
    }


def _keys(place: str, part: Mapping[str, Any]) -> str:
    required = part.get("required", ())
    rows = [
        (f"`{key}`", _type(value), value.get("description", "") + (" **Required.**" if key in required else ""))
        for key, value in part["properties"].items()
        if "const" not in value
    ]
    return f"## {f'`{place}`' if place else 'The whole file'}\n\n{_table(('key', 'type', 'meaning'), rows)}"


def _type(value: Mapping[str, Any]) -> str:
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_type(way) for way in value["anyOf"]))
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if value.get("type") == "array":
        return f"list of {_type(value['items'])}"
    if "$ref" in value or value.get("type") == "object":
        return "keys below"
    return "text" if isinstance(value["type"], list) else str(value["type"])


def models() -> str:
    """Every model."""
    rows = [
        (
            f"`{name}`",
            _first_sentence(model),
            ", ".join(model.tasks),
            "several" if model.takes_several_heads else "one",
            model.framework.name,
        )
        for name, model in MODELS.items()
    ]
    return _table(("name", "what", "tasks", "labels", "trained by"), rows)


def metrics() -> str:
    """Every metric of a model."""
    rows = [
        (f"`{name}`", metric.title, ", ".join(metric.tasks), _first_sentence(metric.measure))
        for name, metric in METRICS.items()
    ]
    return _table(("name", "in summaries", "tasks", "what"), rows)


def _first_sentence(function: Any) -> str:
    return " ".join((inspect.getdoc(function) or "").split("\n\n", maxsplit=1)[0].split())


_IN_A_REPORT = {
    "The whole file": BenchmarkReport,
    "`bench`: of each load": LoadResult,
    "`bench.server`": ServerResources,
    "`bench.breakdown`": Breakdown,
    "`bench.breakdown.steps`: of each model": StepTimes,
    "`floors`: of each concurrency": Floor,
    "`searches`: of each number of rows": SearchResult,
}


def report() -> str:
    """Every field of the JSON that `rankline bench` writes, and the columns of the CSV with other names."""
    bounds = ", ".join(f"`{name}`" for metric in _bounded() for name in metric.bound_names)
    start = (
        f"`format_version` is {FORMAT_VERSION}. In the CSV bounds are {bounds}, `num_errors` is the sum of `errors`, "
        "and `server_cpu_cores` and `server_memory_bytes` are the server's."
    )
    parts = [f"### {place}\n\n{_table(('field', 'meaning'), _in_json(kind))}" for place, kind in _IN_A_REPORT.items()]
    return "\n\n".join([start, *parts])


def _in_json(kind: Any) -> Iterator[tuple[str, str]]:
    of_load = {column.name for column in fields(Load)} if kind is LoadResult else ()
    for column in fields(kind):
        if column.name == "metrics":
            yield from _measured()
        else:
            said = description_of(Load if column.name in of_load else kind, column.name)
            yield f"`{column.name}`", re.sub(r"\bNone\b", "`null`", said)


def _measured() -> Iterator[tuple[str, str]]:
    for metric in MEASURED.values():
        yield f"`{metric.name}`", f"Latency: {metric.label}." if metric.is_latency else "Answered, by the wall clock."
    yield "`intervals_ms`", "Of each percentile `[low, high]`; a bound is `null` where the samples give none."
    yield from ((f"`{metric.name}_interval`", "`[low, high]`.") for metric in _bounded() if not metric.is_latency)
    yield "`withheld`", "Of each latency that is not reported, why."


def _bounded() -> list[Metric]:
    return [metric for metric in MEASURED.values() if metric.has_interval]


def notebook() -> str:
    """The cells of notebook.ipynb and their outputs."""
    cells = json.loads((Path(__file__).parent / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += filter(None, map(_output, cell.get("outputs", ())))
    return "\n\n".join(parts)


def _output(output: Mapping[str, Any]) -> str:
    data = output.get("data", {})
    if output["output_type"] == "display_data" and "image/png" not in data:  # progress of a command
        return ""
    if "text/html" in data:
        return f"```{{raw}} html\n{''.join(data['text/html'])}\n```"
    text = "".join(data.get("text/plain", output.get("text", ())))
    return f"```text\n{text}\n```" if text else ""


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(titles), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _block(lines: Iterable[str]) -> str:
    text = "\n".join(lines)
    return f"```text\n{text}\n```" if text else ""
