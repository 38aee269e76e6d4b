"""The page on the cost model is one script."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "cost_model.md"


def test_the_page_runs():
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    script = "\n".join(blocks)
    assert script.count("assert") >= 10
    exec(compile(script, str(PAGE), "exec"), {})
