"""Rent one machine within limits, look after it, and release it.

    record ──► order ──► machine ──► looks every poll ──► release ──► confirmed
      │          └─ reply lost: look for the name, never order again
      └─ the renter dies: the next command adopts or releases what has the name

A look releases a machine one poll before a limit would be passed. Ages are those of the service's clock. A machine of
this home's prefix without an open record is released on sight. A renter looks after the rentals of its own service.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal

from trainyard.callbacks import ignore
from trainyard.compute.rent.rentals import (
    Offer,
    OfferQuery,
    Rental,
    RentalLimits,
    RentalState,
    RentalStore,
)
from trainyard.compute.rent.wire import Pod, RentService, ReplyLost
from trainyard.errors import Conflict, InvalidInput, LimitExceeded, NotFound, TrainyardError, Unavailable
from trainyard.spec.money import SECONDS_PER_HOUR, format_usd, round_usd

POLL_S = 30.0
LOOKS = 4
"""Looks for a machine whose order had no reply, a poll apart."""
APPEARS_S = 600.0
"""Time after which a machine that was ordered and never seen is given up; should it appear, its name releases it."""
STARTS_S = 1800.0
"""Time in which a service has to find a machine for an order that it has taken."""
CONFIRM_S = 5.0
"""Time between two looks whether a released machine is gone."""


def is_never_busy(_rental: Rental) -> bool:
    return False


class Renter:
    """Rents machines of one service for one home."""

    def __init__(
        self,
        service: RentService,
        store: RentalStore,
        *,
        poll_s: float = POLL_S,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = ignore,
        is_busy: Callable[[Rental], bool] = is_never_busy,
    ) -> None:
        self.service, self.store, self.poll_s = service, store, poll_s
        self.now, self.sleep, self.say, self.is_busy = now, sleep, say, is_busy

    # Rent

    def rent(
        self, key: str, query: OfferQuery, limits: RentalLimits, hours: float, admit: Callable[[], None] = ignore
    ) -> Rental:
        """Return the rental of the cheapest offer that fits; for a key that has one already, that one.

        `admit` raises where this home may not rent it, and sees every rental that was begun before this one.
        Raises `NotFound` (`E-OFFERS`), `LimitExceeded` (`E-SPEND`), `Conflict` (`E-RENTAL`), and as the service does.
        """
        if (earlier := self.find_earlier(key)) is not None:
            return self.check(earlier)
        self.reap()
        offer = self.choose(query, limits, hours)
        with self.store.locked():
            if (earlier := self.find_earlier(key)) is None:
                admit()
                name = f"{self.store.prefix}{key}"
                rental = self.store.put(Rental(key=key, name=name, offer=offer, limits=limits, created=self.now()))
        if earlier is not None:  # another process was faster
            return self.check(earlier)
        try:
            pod = self.order(rental)
        except (ReplyLost, Unavailable):
            raise
        except TrainyardError as error:
            self.store.put(
                rental.model_copy(update={"state": RentalState.RELEASED, "reason": f"refused: {error.what}"})
            )
            raise
        rental = self.check(self.adopt(rental, pod))
        if not rental.is_open and not rental.checked:
            raise Unavailable(
                f"{self.service.title} rented no machine: {rental.reason}.", do="Ask for offers again.", code="E-RENT"
            )
        if not rental.is_open or rental.state is RentalState.RELEASING:
            raise LimitExceeded(
                f"The machine was released at once: {rental.reason}.", do="Ask for offers again.", code="E-RENT"
            )
        return rental

    def find_earlier(self, key: str) -> Rental | None:
        """Return the open rental of a key; None without one. Raises `Conflict` (`E-RENTAL`) for a key that is used."""
        earlier = self.store.find(key)
        if earlier is not None and not self.has(earlier):
            raise Conflict(
                f"The rental {key} is one of {earlier.offer.service}, not of {self.service.service}.",
                do="Use another key, or the engine of the rental.", code="E-RENTAL",
            )  # fmt: skip
        if earlier is not None and not earlier.is_open:
            raise Conflict(f"The rental {key} has ended: {earlier.reason}.", do="Use another key.", code="E-RENTAL")
        return earlier

    def choose(self, query: OfferQuery, limits: RentalLimits, hours: float) -> Offer:
        """Return the offer with the lowest price × hours within the limits."""
        if hours * 3600 > limits.max_duration_s:
            raise InvalidInput(
                f"{hours:g} hours are longer than max_duration {limits.max_duration_s:g} s.",
                do="Raise max_duration, or plan fewer hours.", code="E-PARAMETER",
            )  # fmt: skip
        offers = self.service.list_offers(query.model_copy(update={"max_price": None}))
        fitting = [offer for offer in offers if offer.usd_per_hour <= limits.max_price]
        size = f"{query.gpus} × {query.gpu or 'any GPU'}"
        if not fitting:
            cheapest = min((offer.usd_per_hour for offer in offers), default=None)
            why = "None is in stock." if cheapest is None else f"The cheapest costs {format_usd(cheapest)} an hour."
            raise NotFound(
                f"No offer has {size} for at most {format_usd(limits.max_price)} an hour.", why=why,
                do="Raise max_price, or ask for another GPU: `trainyard gpus offers` lists them.", code="E-OFFERS",
            )  # fmt: skip
        offer = min(fitting, key=lambda offer: (offer.cost(hours), offer.instance))
        if offer.cost(hours) > limits.max_spend:
            raise LimitExceeded(
                f"{hours:g} hours of the cheapest offer cost {format_usd(offer.cost(hours))}, and max_spend is "
                f"{format_usd(limits.max_spend)}.", do="Raise max_spend, or plan fewer hours.", code="E-SPEND",
            )  # fmt: skip
        return offer

    def order(self, rental: Rental) -> Pod:
        """Order a machine, once; where the reply is lost, look for the machine by its name."""
        try:
            pod = self.service.create_pod(rental)
        except ReplyLost as error:
            self.say(f"{error.what} Looking for {rental.name}.")
            listed_pod = self.look_for(rental.name)
            if listed_pod is None:
                raise ReplyLost(
                    f"Whether {rental.name} was rented is not known: {error.what}",
                    why="It is not ordered a second time.",
                    do="`trainyard gpus ps` looks again, and releases the machine if it appears.",
                ) from error
            return listed_pod
        return pod

    def look_for(self, name: str) -> Pod | None:
        for attempt in range(LOOKS):
            if attempt:
                self.sleep(self.poll_s)
            try:
                pod = self.find_order(name)
            except TrainyardError as error:
                self.say(str(error))
                continue
            if pod is not None:
                return pod
        return None

    def find_order(self, name: str) -> Pod | None:
        """Return the machine, or what will become one, with a name."""
        return next((pod for pod in self.service.list_pods(name) if pod.name == name and pod.is_order), None)

    def adopt(self, rental: Rental, pod: Pod) -> Rental:
        updates = {"state": RentalState.ACTIVE, "pod_id": pod.id, "ssh": pod.address}
        return self.store.put(rental.model_copy(update=updates))

    # Look after

    def check(self, rental: Rental, *, busy: bool = False) -> Rental:
        """Look at a machine once: write what it costs, and release it where a limit is near."""
        rental = self.store.find(rental.key) or rental  # another process may have looked, or released it
        if not rental.is_open or not rental.pod_id:
            return self.check_order(rental) if rental.is_open else rental
        pod = self.service.find_pod(rental.pod_id)
        if pod is None or pod.end:
            return self.close_gone(rental, "" if pod is None else pod.end)
        price = self.choose_price(rental, pod)
        rental = self.measure(rental, pod)
        if busy or self.is_busy(rental):
            rental = self.store.put(rental.model_copy(update={"busy_age_s": rental.age_s}))
        if rental.state is RentalState.RELEASING:
            return self.release(rental, rental.reason)
        if reason := self.find_limit(rental, price):
            return self.release(rental, reason)
        return rental

    def measure(self, rental: Rental, pod: Pod) -> Rental:
        """Write the age of a machine, and what it has cost."""
        age = max(rental.age_s, self.service.read_age(pod))
        price = self.choose_price(rental, pod)
        usd = round_usd(rental.usd + price * Decimal(str(age - rental.age_s)) / SECONDS_PER_HOUR)
        updates = {"age_s": age, "usd": usd, "checked": self.now(), "ssh": pod.address or rental.ssh}
        return self.store.put(rental.model_copy(update=updates))

    def choose_price(self, rental: Rental, pod: Pod) -> Decimal:
        """Return the machine's own price, else that of its offer."""
        return pod.price if pod.price is not None else rental.offer.usd_per_hour

    def close_gone(self, rental: Rental, end: str = "") -> Rental:
        """Close the record of a machine that the service does not have; a new one is not listed at once."""
        if not end and rental.age_s == 0 and self.now() - rental.created < APPEARS_S and not rental.reason:
            return rental
        reason = rental.reason or end or "the machine is gone: the provider took it back, or it ended itself"
        return self.store.put(rental.model_copy(update={"state": RentalState.RELEASED, "reason": reason}))

    def check_order(self, rental: Rental) -> Rental:
        """Look whether a machine that was ordered has appeared."""
        pod = self.find_order(rental.name)
        if pod is not None:
            return self.check(self.adopt(rental, pod))
        if self.now() - rental.created < APPEARS_S:
            return rental
        return self.store.put(
            rental.model_copy(update={"state": RentalState.RELEASED, "reason": "no machine appeared"})
        )

    def find_limit(self, rental: Rental, price: Decimal) -> str:
        """Return the limit that the machine reaches before the next look; empty for none."""
        limits, next_age = rental.limits, rental.age_s + self.poll_s
        next_usd = rental.usd + price * Decimal(str(self.poll_s)) / SECONDS_PER_HOUR
        if price > limits.max_price:
            return f"its price rose to {format_usd(price)} an hour, above max_price"
        if next_age > limits.max_duration_s:
            return f"max_duration of {limits.max_duration_s:g} s"
        if next_usd > limits.max_spend:
            return f"max_spend of {format_usd(limits.max_spend)}"
        if rental.age_s == 0 and self.now() - rental.created >= STARTS_S:
            return "no machine was there in time"
        if rental.age_s - rental.busy_age_s >= limits.idle_duration_s:
            return f"idle for {limits.idle_duration_s:g} s"
        return ""

    # Release

    def release(self, rental: Rental, reason: str) -> Rental:
        """Release a machine. It stays `releasing` until the service confirms that it is gone."""
        rental = self.store.put(rental.model_copy(update={"state": RentalState.RELEASING, "reason": reason}))
        if not rental.pod_id:
            pods = [pod for pod in self.service.list_pods(rental.name) if pod.name == rental.name]
            if not pods:
                return self.check_order(rental) if self.now() - rental.created >= APPEARS_S else rental
            rental = self.store.put(rental.model_copy(update={"pod_id": pods[0].id}))
        waited_s = 0.0
        while True:
            self.service.delete_pod(rental.pod_id)
            pod = self.service.find_pod(rental.pod_id)
            if pod is None or pod.end:
                break
            rental = self.measure(rental, pod)
            if waited_s >= self.service.confirm_s:
                return rental
            self.sleep(CONFIRM_S)
            waited_s += CONFIRM_S
        self.say(f"released {rental.name}: {reason}, {format_usd(rental.usd)}")
        return self.store.put(rental.model_copy(update={"state": RentalState.RELEASED}))

    def reap(self) -> list[str]:
        """Look at every open rental of the service, and release every machine of this home that has none.

        Returns what could not be looked at. One failure keeps no other machine from being released.
        """
        problems: list[str] = []
        for rental in self.store.list(problems.append):
            if rental.is_open and self.has(rental):
                with collect_problem(problems, rental.name):
                    self.check(rental)
        with collect_problem(problems, self.store.prefix):
            records = {rental.name: rental for rental in self.store.list() if self.has(rental)}
            for pod in self.service.list_pods(self.store.prefix):
                record = records.get(pod.name)
                if record is None or not record.is_open or record.pod_id not in ("", pod.id):
                    with collect_problem(problems, pod.id):
                        self.release_stray(pod, record)
        return problems

    def has(self, rental: Rental) -> bool:
        """Return whether a rental is one of this renter's service."""
        return rental.offer.service == self.service.service

    def release_stray(self, pod: Pod, record: Rental | None) -> None:
        """Release a machine that no open rental has, and add its cost to the record with its name."""
        self.say(f"releasing {pod.name} ({pod.id}), which no open rental of this home has")
        self.service.delete_pod(pod.id)
        if record is not None and not record.is_open:
            self.measure(record.model_copy(update={"pod_id": pod.id}), pod)

    @contextmanager
    def attach(self, rental: Rental) -> Iterator[Rental]:
        """Release the machine when the block is left, however that happens."""
        try:
            yield rental
        finally:
            self.release_now(rental.key)

    def release_now(self, key: str) -> Rental:
        """Release a rental whose block was left; the reaper releases it where the service does not answer."""
        rental = self.store.get(key)
        if not rental.is_open:
            return rental
        try:
            rental = self.check(rental)
            return self.release(rental, rental.reason or "its use has ended") if rental.is_open else rental
        except TrainyardError as error:
            self.say(f"{rental.name} could not be released now ({error.what}); the next command tries again")
            return self.store.get(key)


@contextmanager
def collect_problem(problems: list[str], name: str) -> Iterator[None]:
    try:
        yield
    except TrainyardError as error:
        problems.append(f"{name}: {error}")
