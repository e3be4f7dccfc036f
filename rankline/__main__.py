"""Entry point of `python -m rankline`, for environments without the `rankline` script."""

from rankline.cli.main import main

if __name__ == "__main__":
    main()
