"""python -m gpuhop"""

from gpuhop.cli import main

if __name__ == "__main__":
    main()
