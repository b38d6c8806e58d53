"""A flow is drawn in three forms, with the state of its steps."""

import xml.etree.ElementTree as ElementTree

import pytest

from deputize.core.contract.flow import Flow
from deputize.interfaces.cli.render.flow_graph import draw_mermaid, draw_svg, draw_text

pytestmark = pytest.mark.requirement("RES-3")
FLOW = Flow.model_validate(
    {
        "steps": [
            {"name": "order", "tool": "shop.find_order"},
            {
                "name": "large",
                "when": "/steps/order/total > 100",
                "steps": [{"name": "ask", "tool": "shop.ask"}],
                "otherwise": [{"name": "pay", "tool": "shop.pay", "fallback": [{"tool": "shop.credit"}]}],
            },
            {
                "name": "tell",
                "join": "first",
                "parallel": [{"name": "mail", "tool": "shop.mail"}, {"name": "text", "tool": "shop.text"}],
            },
        ]
    }
)
STATUSES = {"order": "succeeded", "large": "skipped", "ask": "skipped", "pay": "running"}


def test_the_tree_has_a_line_for_each_step_with_its_sign() -> None:
    assert draw_text(FLOW, STATUSES) == [
        "├─ ✓ order: shop.find_order",
        "├─ ↷ large: steps when /steps/order/total > 100",
        "│  └─ ↷ ask: shop.ask",
        "│  otherwise",
        "│  └─ ▶ pay: shop.pay, else shop.credit",
        "└─ tell: parallel, first",
        "   ├─ mail: shop.mail",
        "   └─ text: shop.text",
    ]


def test_mermaid_has_the_edges_of_branches_and_joins() -> None:
    lines = [each.strip() for each in draw_mermaid(FLOW, STATUSES)]
    edges = [each for each in lines if "-->" in each]
    assert edges == [
        "input --> order", "order --> large", "large --> ask", "large --> pay", "ask --> tell", "pay --> tell",
        "tell --> mail", "tell --> text", "mail --> output", "text --> output",
    ]  # fmt: skip
    assert any(each.endswith(":::succeeded") for each in lines)


def test_the_picture_is_xml_and_names_every_step() -> None:
    root = ElementTree.fromstring(draw_svg(FLOW, STATUSES))
    titles = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert [each.partition(":")[0] for each in titles] == [each.name for each in FLOW.walk()]
