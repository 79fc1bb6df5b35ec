"""The text of the package's page: README, whose links to files lead nowhere without the files."""

import re
from pathlib import Path

from setuptools import setup

README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
LINK_TO_FILE = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)[^)]*\)")

setup(
    long_description=LINK_TO_FILE.sub(r"\1", README),
    long_description_content_type="text/markdown",
)
