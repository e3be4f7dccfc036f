import hashlib
import io
import socket
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rankline.workflows.core.errors import DownloadError
from rankline.workflows.storage.download import Archive, download
from tests.factories.recorders import ProgressRecord


@dataclass
class Site:
    """A web site on 127.0.0.1: what it serves, how it misbehaves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    chunked: bool = False
    cuts: list[int] = field(default_factory=list)  # bytes after which each of the next answers breaks off
    asked: list[str] = field(default_factory=list)
    port: int = 0

    def url(self, name):
        return f"http://127.0.0.1:{self.port}/{name}"


def handler_of(site):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_GET(self):
            self.close_connection = True
            site.asked.append(self.path)
            content = site.files.get(self.path.lstrip("/"))
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.answer(content)

        def answer(self, rest):
            sent = rest[: site.cuts.pop(0)] if site.cuts else rest
            if site.chunked:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                end = b"0\r\n\r\n" if sent == rest else b""
                self.wfile.write(f"{len(sent):x}\r\n".encode() + sent + b"\r\n" + end)
            else:
                self.send_header("Content-Length", str(len(rest)))
                self.end_headers()
                self.wfile.write(sent)

    return Handler


@pytest.fixture
def site():
    site = Site()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_of(site)) as server:
        site.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield site
        server.shutdown()
        thread.join()


def zipped(**files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as bundle:
        for name, content in files.items():
            bundle.writestr(name, content)
    return stream.getvalue()


RATINGS = b"userId,movieId\n" + b"".join(b"%d,%d\n" % (row, row % 7) for row in range(20_000))
CONTENT = zipped(**{"ml/ratings.csv": RATINGS, "ml/movies.csv": b"movieId\n"})
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def archive(site):
    site.files["ml.zip"] = CONTENT
    return Archive(name="ml", url=site.url("ml.zip"), md5=MD5)


def assert_whole(directory):
    assert (directory / "ml" / "ratings.csv").read_bytes() == RATINGS
    assert (directory / "ml" / "movies.csv").read_bytes() == b"movieId\n"
    assert [path.name for path in directory.iterdir()] == ["ml"]


def test_download_fetches_once_checks_and_unpacks(site, archive, tmp_path):
    progress = ProgressRecord()
    assert download(archive, tmp_path / "data", progress=progress) == tmp_path / "data" / "ml"
    assert_whole(tmp_path / "data")
    assert progress.reports[-1] == (len(CONTENT), len(CONTENT), "ml")
    asked = list(site.asked)
    download(archive, tmp_path / "data")
    assert site.asked == asked == ["/ml.zip"]


@pytest.mark.parametrize("chunked", [False, True])
def test_cut_connection_is_refused_and_leaves_nothing(site, archive, tmp_path, chunked):
    site.chunked, site.cuts = chunked, [1000]
    with pytest.raises(DownloadError, match="(stopped after|failed) .*Run the command again"):
        download(archive, tmp_path)
    assert list(tmp_path.iterdir()) == []
    download(archive, tmp_path)
    assert_whole(tmp_path)


def test_wrong_checksum_removes_the_file(site, archive, tmp_path):
    site.files["ml.zip"] = zipped(**{"ml/ratings.csv": b"other"})
    with pytest.raises(DownloadError, match=f"has MD5 [0-9a-f]{{32}}, expected {MD5}"):
        download(archive, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_archive_that_would_fill_the_disk_is_not_unpacked(site, tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("ml/ratings.csv", b"0" * 10_000_000)
    site.files["ml.zip"] = stream.getvalue()
    archive = Archive(name="ml", url=site.url("ml.zip"))
    with pytest.raises(
        DownloadError, match=r"would unpack to 10,000,000 bytes in 1 files, expected at most .* It was not"
    ):
        download(archive, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", [f"MD5 (ml.zip) = {MD5}\n", f"{MD5.upper()}  ml.zip\n"], ids=["BSD", "GNU"])
def test_download_uses_the_checksum_file_when_none_is_known(site, archive, tmp_path, text):
    unknown = Archive(name="ml", url=archive.url)
    site.files["ml.zip.md5"] = text.encode()
    download(unknown, tmp_path / "right")
    assert_whole(tmp_path / "right")
    site.files["ml.zip"] = zipped(**{"ml/ratings.csv": b"other"})
    with pytest.raises(DownloadError, match=f"expected {MD5}"):
        download(unknown, tmp_path / "wrong")


def test_download_without_checksum_requires_a_complete_zip(site, archive, tmp_path):
    unknown = Archive(name="ml", url=archive.url)
    download(unknown, tmp_path / "right")
    assert_whole(tmp_path / "right")
    site.files["ml.zip"] = CONTENT[:500] + b"damage" + CONTENT[506:]
    with pytest.raises(DownloadError, match="is not a complete zip file .* Run the command again"):
        download(unknown, tmp_path / "wrong")
    assert list((tmp_path / "wrong").iterdir()) == []


@pytest.mark.parametrize(
    ("place", "value", "reason"), [(6, 1, "is encrypted, password required"), (8, 97, "compression method is not supp")]
)
def test_zip_that_python_cannot_unpack_is_refused(site, tmp_path, place, value, reason):
    content = bytearray(zipped(**{"ml/ratings.csv": RATINGS}))
    for entry, shift in ((content.index(b"PK\3\4"), 0), (content.index(b"PK\1\2"), 2)):
        content[entry + shift + place] = value
    site.files["ml.zip"] = bytes(content)
    with pytest.raises(DownloadError, match=rf"{reason}.*Pass --data-dir DIR to use files on disk"):
        download(Archive(name="ml", url=site.url("ml.zip")), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_archive_without_a_top_folder_becomes_one(site, archive, tmp_path):
    site.files["ml.zip"] = zipped(**{"ratings.csv": RATINGS, "movies.csv": b"movieId\n"})
    download(Archive(name="ml", url=archive.url), tmp_path)
    assert_whole(tmp_path)


@pytest.mark.parametrize("name", ["../evil.txt", "/evil.txt", "..\\evil.txt"])
def test_member_outside_its_folder_is_refused(site, archive, tmp_path, name):
    site.files["ml.zip"] = zipped(**{"ml/ratings.csv": b"1", name: b"evil"})
    with pytest.raises(DownloadError, match="would be written outside its directory. It was not unpacked"):
        download(Archive(name="ml", url=archive.url), tmp_path / "data")
    assert not (tmp_path / "data" / "ml").exists()
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]


def test_missing_file_is_reported_with_its_url_and_the_remedy(site, tmp_path):
    with pytest.raises(DownloadError, match="nothing.zip returned 404 Not Found.*--data-dir DIR"):
        download(Archive(name="ml", url=site.url("nothing.zip"), md5=MD5), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unreachable_server_is_reported_in_one_line_with_the_remedy(tmp_path):
    with socket.socket() as bound:  # bound and not listening: nobody else takes the port, and it refuses
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/ml.zip"
        with pytest.raises(DownloadError) as caught:
            download(Archive(name="ml", url=url, md5=MD5), tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{url} could not be reached (")
    assert message.endswith("Pass --data-dir DIR to use files on disk, or leave out --download to generate data.")
    assert len(message.splitlines()) == 1


def test_silent_server_is_not_waited_for_longer_than_the_timeout(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/ml.zip"
        with pytest.raises(DownloadError, match="could not be reached .*timed out"):
            download(Archive(name="ml", url=url, md5=MD5), tmp_path, timeout_s=0.05)
