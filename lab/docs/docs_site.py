"""A hook of MkDocs, which adds files outside docs/ to the site, and an extension of Griffe.

README, CONTRIBUTING and CHANGELOG lie where repository hosts show them, and examples where they
run. Their links, and links to them, are changed to links within the site. The signatures that
`lab.docs.signatures` wrote into the pages of the API are removed: the site has them in full.
"""

import re
from pathlib import Path
from typing import Any

from griffe import Attribute, ExprCall, Extension
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PLACES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CITATION.cff": "CITATION.cff",
    **{f"examples/{path.name}": f"examples/{path.stem}.md" for path in EXAMPLES},
}
OUTSIDE = re.compile(rf"(?<=\]\()(?:\.\./)?({'|'.join(map(re.escape, PLACES))})(?=[#)])")
# A name of the API with its options, and its signatures behind it.
SIGNATURES = re.compile(r"^(::: .*\n(?:    .*\n)*)\n```python\n[\s\S]*?\n```\n", re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add these files, as if they lay in docs/."""
    for name, place in PLACES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if name.endswith(".py"):
            text = f"# {name}\n\n```python\n{text}```\n"
        else:
            text = text.replace("](docs/", "](")
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Change the links to these files, and leave out signatures."""
    return OUTSIDE.sub(lambda link: PLACES[link[1]], SIGNATURES.sub(r"\1", markdown))


class Defaults(Extension):
    """Signatures show the default of a hyper-parameter, not its bound.

    `lr: float = bounded(0.2, ...)` is shown as `lr=0.2`.
    """

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Called before the fields of dataclasses become parameters."""
        if isinstance(attr.value, ExprCall) and str(attr.value.function) == "bounded":
            attr.value = attr.value.arguments[0]
