"""``python -m taskloom.runs.cli``: the command line without the script."""

from taskloom.runs.cli import main

if __name__ == "__main__":
    main()
