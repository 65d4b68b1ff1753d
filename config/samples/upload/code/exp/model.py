def predict(epochs: int, rate: float) -> float:
    return round((1 - rate) ** epochs, 6)
