"""The commands of an installation, one module each; `cspd-NAME --help` documents them."""
