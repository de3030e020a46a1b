import uuid

import openai
import pytest

from fleet import fleet


@pytest.fixture(scope="session")
def running(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("gateway") / "smg.log") as started:
        yield started


@pytest.fixture
def client(running):
    # No retries: what the gateway answers first is what is tested.
    with openai.OpenAI(base_url=f"{running.gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def key():
    return f"conv-{uuid.uuid4().hex}"
