"""The settings that a command line gives, with its variables and file. A broker that runs may have others."""

from __future__ import annotations

from kbroker import __version__
from kbroker.app.config import Settings
from kbroker.app.settings_toml import settings_toml

HEADING = (
    f"# Settings of kbroker {__version__} as this command line, its variables and file give them, with their sources.\n"
    "# A broker that runs may have been started with others.\n"
)


def given_settings(settings: Settings) -> str:
    """As TOML, secrets masked, under a heading of its own."""
    return HEADING + settings_toml(settings).partition("\n")[2]
