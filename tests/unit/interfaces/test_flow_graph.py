"""A flow is drawn in three forms, with the state of its steps."""

import xml.etree.ElementTree as ElementTree

import pytest

from deputize.core.contract.flow import Flow
from deputize.interfaces.flow_graph import draw_mermaid, draw_svg, draw_svg_document, draw_text

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
        "input --> step_order", "step_order --> step_large", "step_large --> step_ask", "step_large --> step_pay",
        "step_ask --> step_tell", "step_pay --> step_tell", "step_tell --> step_mail", "step_tell --> step_text",
        "step_mail --> output", "step_text --> output",
    ]  # fmt: skip
    assert any(each.endswith(":::succeeded") for each in lines)


def test_a_step_may_have_the_name_of_a_node_or_a_keyword_of_mermaid() -> None:
    steps = [{"name": name, "tool": "shop.look"} for name in ("input", "end", "output")]
    assert draw_mermaid(Flow.model_validate({"steps": steps}), {}) == [
        "flowchart TD",
        "  input([input])",
        '  step_input["input<br>shop.look"]',
        "  input --> step_input",
        '  step_end["end<br>shop.look"]',
        "  step_input --> step_end",
        '  step_output["output<br>shop.look"]',
        "  step_end --> step_output",
        "  output([output])",
        "  step_output --> output",
    ]


def test_the_picture_is_xml_and_names_every_step_and_its_state() -> None:
    root = ElementTree.fromstring(draw_svg_document(FLOW, STATUSES))
    titles = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert [each.partition(":")[0] for each in titles[1:]] == [each.name for each in FLOW.walk()]
    assert (titles[1], titles[4]) == (
        "order: shop.find_order, succeeded",
        "pay: shop.pay, else shop.credit, running",
    )


def test_a_picture_in_a_page_has_a_role_and_a_title_and_no_style_of_its_own() -> None:
    markup = draw_svg(FLOW, STATUSES, title="<b>steps</b>")
    assert 'role="img"' in markup
    assert "<title>&lt;b&gt;steps&lt;/b&gt;</title>" in markup
    assert "style" not in markup
