"""The chat page in a headless Chromium, against a server with a fake engine."""

import pytest


@pytest.fixture
def server():
    http_server = pytest.importorskip("http_server")
    from fake_engine import FakeEngine

    with http_server.running(FakeEngine(seconds=0.005)) as one:
        yield one


@pytest.fixture(scope="session")
def tab(tmp_path_factory):
    """One browser for all tests, since it starts slowly."""
    chromium = pytest.importorskip("chromium")
    with chromium.browse(tmp_path_factory.mktemp("browser"), "about:blank") as one:
        yield one


@pytest.fixture
def page(server, tab):
    """The page, which must not complain; `page.errors.clear()` for what it may."""
    from chat_page import open_page

    open_page(tab, server)
    yield tab
    assert tab.errors == []
    tab.call("Page.navigate", url="about:blank")
