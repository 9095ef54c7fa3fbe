"""The gateways that `benchmarks/fleet.py` makes up answer what real ones do, to the operator's own readers."""

from __future__ import annotations

import asyncio

import msgspec
from _loopback.fleet_auto import document
from _loopback.fleet_gateways import Fleet
from _loopback.fleet_recordings import Recordings
from tests.gateway.conftest import Engine, MakeSite, Site, make_site

from fulcrum.api.gateway import DemandReport, LoadsReport, PairsReport
from fulcrum.api.names import LABEL_CLUSTER, LABEL_COMPONENT, LABEL_ROLE, PORT_GATEWAY_INSIDE, Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.telemetry.counts import read_page

__all__ = ["make_site"]

PAGES = {
    "/metrics": lambda body: read_page(body.decode()),
    "/loads": msgspec.json.Decoder(LoadsReport).decode,
    "/kv-pairs": msgspec.json.Decoder(PairsReport).decode,
    "/demand": msgspec.json.Decoder(DemandReport).decode,
}


def made_up() -> Fleet:
    """One cluster of a gateway and a worker."""
    spec = msgspec.convert(document("c", rehearse=True)["spec"], InferenceClusterSpec)
    fleet = Fleet(Recordings(spec, period_seconds=20.0), troubled=frozenset())
    labels = {LABEL_CLUSTER: "c"}
    gateway = {"name": "c-gateway-0", "labels": {**labels, LABEL_COMPONENT: "gateway"}}
    fleet.pod_changed(None, {"metadata": gateway, "status": {"podIP": "127.0.0.2"}})
    worker = {"name": "c-p-0", "labels": {**labels, LABEL_ROLE: "decode"}}
    fleet.pod_changed(None, {"metadata": worker, "status": {"podIP": "127.0.0.3"}})
    return fleet


async def real(site: Site, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.inside_port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: g\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


async def test_each_page_of_a_gateway_has_the_form_of_a_real_ones(make_site: MakeSite) -> None:
    site, fleet = await make_site(Engine("m", Role.MIXED)), made_up()
    for path, read in PAGES.items():
        for answer in (await real(site, path), fleet.answer("127.0.0.2", PORT_GATEWAY_INSIDE, path)):
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), path
            assert b"connection: close" in head, f"{path}: each question is a connection"
            read(body)
    told = PAGES["/loads"](fleet.answer("127.0.0.2", PORT_GATEWAY_INSIDE, "/loads").partition(b"\r\n\r\n")[2])
    assert {name: load.role for name, load in told.loads.items()} == {"c-p-0": Role.DECODE}
    # A page that a real one has and this one lacks would be asked for in vain, at another cost.
    known = (await real(site, "/nothing")).partition(b"Here are: ")[2].decode().strip().split(", ")
    lacking = [page for page in known if b" 404 " in fleet.answer("127.0.0.2", PORT_GATEWAY_INSIDE, page)[:20]]
    assert lacking == ["/health", "/ready"], "kubelets ask for those"
