import pytest

from rankline.serving.deploy.bench import show
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.serving.loadtest.runs import Load
from tests.factories.reports import report_of, result_of


def report(problem: str = "", stopped: str = "") -> BenchmarkReport:
    result = result_of(Load(batch_size=1024, concurrency=1), problem=problem, is_refused=bool(problem))
    return report_of(result, num_checked=50, max_abs_error=0.0, problem=stopped)


def test_figures_that_nothing_is_wrong_with_are_a_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(report()) == 0
    printed = capsys.readouterr()
    row = printed.out.splitlines()[1].split()
    assert row[0] == "1,024"
    assert [float(cell) for cell in row[1:5]] == pytest.approx([200, 360, 380, 396], rel=0.001)
    assert (row[5], row[7]) == ("–", "1,638,400")
    assert "p99.9 not reported: 400 samples" in printed.out
    assert "50 scores compared" in printed.out
    assert printed.err == ""


@pytest.mark.parametrize("bad", [report("the client was the bottleneck"), report(stopped="by Ctrl-C")])
def test_a_report_with_a_problem_is_a_failure_that_says_it(
    bad: BenchmarkReport, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(bad) == 1
    assert capsys.readouterr().err.splitlines() == list(bad.problems)
