"""Offers of many providers, from the catalog that gpuhunt publishes. It lists prices and rents nothing.

`gpu_catalog` names a copy: a folder with `<provider>/version` and `<provider>/<version>/catalog.zip`, as published, for
machines without internet. gpuhunt reads its place from its environment variable.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Lock
from typing import Any

from trainyard.compute.rent.rentals import Offer, OfferQuery
from trainyard.errors import Unavailable

PLACE = "GPUHUNT_CATALOG_URL"
READING = Lock()


def list_catalog_offers(query: OfferQuery, address: str = "") -> list[Offer]:
    """Return the catalog's offers. Raises `Unavailable` (`E-OFFERS`) where it cannot be read."""
    try:
        import gpuhunt  # an extra
    except ImportError as error:
        raise Unavailable(
            "The catalog of GPU prices is not installed.", do="`pip install 'trainyard[rent]'`.", code="E-OFFERS"
        ) from error
    catalog = gpuhunt.Catalog(balance_resources=False, auto_reload=False)
    with use_catalog(address):
        try:
            catalog.load()
        except (gpuhunt.GPUHuntError, OSError) as error:
            raise Unavailable(
                f"The catalog of GPU prices cannot be read: {error}.",
                do="Check the connection, or set gpu_catalog to a stored copy.", code="E-OFFERS",
            ) from error  # fmt: skip
    items = catalog.query(provider=sorted(catalog.catalog), min_gpu_count=query.gpus, max_gpu_count=query.gpus)
    dates = {name: read_date(entry.version) for name, entry in catalog.catalog.items()}
    return [offer for item in items if query.accepts(offer := read_item(item, dates[item.provider]))]


@contextmanager
def use_catalog(address: str) -> Iterator[None]:
    """Let gpuhunt read a copy; it logs every provider that a copy lacks, which is not an error."""
    logger, before = logging.getLogger("gpuhunt"), os.environ.get(PLACE)
    with READING:
        level = logger.level
        logger.setLevel(logging.CRITICAL)
        if address:
            os.environ[PLACE] = address if "://" in address else Path(address).resolve().as_uri()
        try:
            yield
        finally:
            logger.setLevel(level)
            if address:
                os.environ.pop(PLACE) if before is None else os.environ.update({PLACE: before})


def read_date(version: str) -> date:
    """Return the date of a version such as `20261101-123`; today for another form."""
    try:
        return datetime.strptime(version[:8], "%Y%m%d").replace(tzinfo=UTC).date()
    except ValueError:
        return datetime.now(UTC).date()


def read_item(item: Any, day: date) -> Offer:
    return Offer(
        service="catalog", provider=item.provider, instance=item.instance_name, region=item.location or "",
        gpu=item.gpu_name or "", gpus=item.gpu_count, gpu_memory_gb=float(item.gpu_memory or 0), spot=bool(item.spot),
        usd_per_hour=Decimal(str(item.price)), source="gpuhunt catalog", date=day,
    )  # fmt: skip
