"""Entry point of the command `rankline`, and of `python -m rankline`."""

import sys


def main() -> None:
    try:
        from rankline.cli.main import main as run
    except KeyboardInterrupt:  # imports take half a second, in which nothing has begun
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
