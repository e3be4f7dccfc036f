"""Installed packages, as importlib finds them."""

from pathlib import Path


def leave_installed(site: Path, name: str, entry_points: str = "", *, release: str = "1.0") -> None:
    """What an installer leaves of a package beside its modules.

    Args:
        site: directory that is searched for packages.
        name: of the package.
        entry_points: in the form of entry_points.txt.
        release: its version.
    """
    about = site / f"{name.replace('-', '_')}-{release}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n", encoding="utf-8")
    if entry_points:
        (about / "entry_points.txt").write_text(entry_points, encoding="utf-8")
