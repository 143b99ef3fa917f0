"""A hook of MkDocs: files of the repository's root as pages of the site.

README, CONTRIBUTING and CHANGELOG lie where hosts of repositories show them, outside of docs/.
Their links, and those to them, are changed to links within the site.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PLACES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CITATION.cff": "CITATION.cff",
}
TO_ROOT = re.compile(rf"(?<=\]\()(?:\.\./)?({'|'.join(map(re.escape, PLACES))})(?=[#)])")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files of the root, as if they lay in docs/."""
    for name, place in PLACES.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Change the links to files of the root."""
    return TO_ROOT.sub(lambda link: PLACES[link[1]], markdown)
