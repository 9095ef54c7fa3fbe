"""One request on its way: admitted, sent to workers, tried again, resumed, accounted for."""
