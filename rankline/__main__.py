"""`python -m rankline`, where no script of that name is installed."""

from rankline.cli.main import main

if __name__ == "__main__":
    main()
