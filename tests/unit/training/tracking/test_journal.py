from pathlib import Path

import pytest

from rankline.training.tracking.journal import Delivered, InUse, Journal, journal_of, left_in
from rankline.workflows.core.errors import ArtifactError


def written(journals: Path) -> tuple[Path, bytes]:
    """A closed journal of three entries, and its file."""
    journal = Journal.new(journals)
    for step in range(3):
        journal.append("metrics", values={"loss": step / 3}, step=step)
    journal.sync()
    journal.close()
    return journal.directory, (journal.directory / "journal").read_bytes()


def steps_in(directory: Path) -> list[int]:
    journal = Journal(directory)
    found = [entry.content["step"] for entry in journal.read()]
    journal.close()
    return found


def test_journal_cut_off_at_any_byte_keeps_the_lines_before(tmp_path: Path) -> None:
    directory, whole = written(tmp_path)
    lines = whole.splitlines(keepends=True)
    for length in range(len(whole) + 1):
        (directory / "journal").write_bytes(whole[:length])
        num_whole = sum(len(b"".join(lines[: number + 1])) <= length for number in range(3))
        assert steps_in(directory) == list(range(num_whole))
    (directory / "journal").write_bytes(whole[:-5] + b"\0" * 5)
    journal = Journal(directory)
    journal.append("metrics", values={}, step=7)
    journal.close()
    assert steps_in(directory) == [0, 1, 7]


def test_line_that_was_altered_is_refused_where_others_follow_it(tmp_path: Path) -> None:
    directory, whole = written(tmp_path)
    (directory / "journal").write_bytes(whole.replace(b'"step": 1', b'"step": 8'))
    with pytest.raises(ArtifactError, match=r"damaged at byte \d+.* delete .* to discard the rest"):
        Journal(directory)
    (directory / "journal").write_bytes(whole)
    assert steps_in(directory) == [0, 1, 2]  # nobody holds it


def test_journal_is_locked_by_one_process(tmp_path: Path) -> None:
    journal = Journal.new(tmp_path)
    with pytest.raises(InUse, match="is in use by another process"):
        journal_of(tmp_path, journal.id)
    journal.note_delivered(Delivered(run_id="the run"))
    journal.close()
    again = journal_of(tmp_path, "the run")
    assert again is not None
    assert again.delivered == Delivered(run_id="the run")
    again.remove()
    assert left_in(tmp_path) == []
    assert journal_of(tmp_path, "the run") is None


def test_mark_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    directory, _ = written(tmp_path)
    (directory / "delivered").write_text('{"end": 12, "of": 3}')
    assert left_in(tmp_path)[0].delivered == Delivered()


def test_files_stay_as_they_were_when_they_are_replaced(tmp_path: Path) -> None:
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    (artifact / "a.txt").write_text("old")
    journal = Journal.new(tmp_path / "journals")
    folder, file = journal.keep(artifact), journal.keep(artifact / "a.txt")
    (tmp_path / "new.txt").write_text("new")
    (tmp_path / "new.txt").replace(artifact / "a.txt")
    assert (journal.directory / folder / "a.txt").read_text() == "old"
    assert (journal.directory / file).read_text() == "old"
    assert Path(folder).name == "artifact"
    journal.sync()
    journal.close()
