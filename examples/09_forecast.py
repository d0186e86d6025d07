"""How long will fine-tuning take? Forecast it, do it, and let the next forecast learn from it.

python examples/09_forecast.py [FOLDER]
"""

import sys

import nearkin as nk
from nearkin.distance.forecasting.forecasts import PlannedRun
from nearkin.zoo.forecast import ForecastOptions, forecast_finetuning

TASKS = {"low": "digits?classes=0,1,2,3,4&rest=drop&limit=400", "high": "digits?classes=5,6,7,8,9&rest=drop&limit=400"}


def main(folder: str) -> None:
    with nk.Zoo(folder) as zoo:
        for name, data in TASKS.items():
            zoo.add(nk.task(data, name=name), "mlp?hidden=32", trials=1)
        print(zoo.forecast("low", "high", to="loss=0.2").verdict)
        limited = ForecastOptions(to="loss=0.2", plan=PlannedRun(steps=50))
        print(zoo.forecast("low", "high", how=limited).verdict)
        checked = forecast_finetuning(zoo, "low", "high", ForecastOptions(to="loss=0.2", check=True))
        print(f"measured: {checked.measured:.0f} steps")
        odd = nk.task("digits?parity&limit=400", name="odd")
        print(f"recorded runs that the next forecast uses: {zoo.forecast('low', odd).own_runs}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "example-zoo")
