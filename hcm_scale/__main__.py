"""`python -m hcm_scale` is the same as `hcm-scale`."""

from hcm_scale.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
