"""Configuration: TOML in, frozen values out.

`model` names every key and its default, `loading` turns a file into a `Config` or into one clear error,
`checking` looks at the machine for what a valid file cannot know."""

from linkpass.config.checking import Finding, check
from linkpass.config.loading import ConfigError, core_settings, load, parse, read_key
from linkpass.config.model import DEFAULT_PATH, Config

__all__ = ["DEFAULT_PATH", "Config", "ConfigError", "Finding", "check", "core_settings", "load", "parse", "read_key"]
