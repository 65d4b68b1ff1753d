from exp.model import predict


def run(epochs: int, rate: float) -> dict:
    return {"epochs": epochs, "loss": predict(epochs, rate)}
