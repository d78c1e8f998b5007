"""The command `fmcheck`, and `python -m fmcheck`."""

from __future__ import annotations

import sys


def main() -> int:
    """Says again what an equal run said, or makes the run."""
    from fmcheck.import_path import leave_out_working_folder

    leave_out_working_folder()
    # Nothing else may be imported before this: a replay takes a tenth of those imports' time.
    from fmcheck.lint.replay import replay

    argv = sys.argv[1:]
    try:
        status = replay(argv)
        if status is None:
            from fmcheck.lint.quick import quick

            status = quick(argv)
        if status is None:
            from fmcheck.lint.recording import recorded

            status = recorded(argv)
    except KeyboardInterrupt:
        print("fmcheck: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stdout = None
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
