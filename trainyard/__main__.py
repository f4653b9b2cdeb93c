"""The command line as a module: `python -m trainyard`."""

from trainyard.surfaces.cli.main import main

if __name__ == "__main__":
    main()
