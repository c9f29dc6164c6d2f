"""`python -m atc_py` is `atc`."""

from atc_py.cli import main

if __name__ == "__main__":
    main()
