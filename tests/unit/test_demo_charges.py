"""What the demo makes of the bank's ledger and of a cut."""

from simulations.demo.agents import price
from simulations.demo.charges import audit_orders
from simulations.demo.outside import Charge


def charged(number, *, receipt="", cents=0):
    return Charge(
        receipt=receipt or f"r{number}", token=f"t{number}", order=f"order-{number}", cents=cents or price(number)
    )


def test_each_order_charged_once_with_its_receipt_and_price_is_right():
    found, problems = audit_orders([charged(1), charged(2)], {1: "r1", 2: "r2"})
    assert (found.charges, found.cents, problems) == (2, price(1) + price(2), [])


def test_charge_that_the_cut_does_not_have_yet_is_no_problem():
    assert audit_orders([charged(1), charged(2)], {1: "r1"})[1] == []


def test_order_charged_twice_is_told_and_the_list_is_cut_short():
    charges = [charged(number) for number in range(1, 9)]
    found, problems = audit_orders([*charges, *charges], {})
    assert len(found.duplicated) == 8
    assert problems == ["charged more than once: order-1, order-2, order-3, order-4, order-5 and 3 more"]


def test_order_that_counts_as_paid_and_was_never_charged_is_told():
    found, problems = audit_orders([charged(1)], {1: "r1", 2: "r2"})
    assert found.lost == ("order-2",)
    assert problems == ["never charged, and counted as paid: order-2"]


def test_another_receipt_or_price_than_the_banks_is_told():
    _, problems = audit_orders([charged(1), charged(2, cents=1)], {1: "r9", 2: "r2"})
    assert problems == [
        "order-1 has receipt r9; the bank's is r1",
        f"order-2 was charged 1 cents; its price is {price(2)}",
    ]
