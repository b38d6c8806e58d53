"""An HTTP service by FastAPI, imported as it describes itself: its names, and its errors by status."""

from proofs.first_day.newcomer import Journal, Newcomer, read_output

_SERVICE = '''"""A shop of pets, as its maintainers wrote it."""

import sys

import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

app = FastAPI(title="Pets", version="1", servers=[{"url": f"http://127.0.0.1:{sys.argv[1]}"}])


class Pet(BaseModel):
    name: str


@app.get("/pets/{number}")
def get_pet(number: int) -> Pet:
    """Show a pet."""
    if number == 2:
        raise HTTPException(409, "this pet is being washed")
    if number != 1:
        raise HTTPException(404, "no such pet")
    return Pet(name="Rex")


print("pets are open", flush=True)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
'''
# By status: the number of the pet, and what a caller reads.
_ERRORS = {
    404: (3, "no such pet"),
    409: (2, "this pet is being washed"),
}


async def import_service(user: Newcomer, journal: Journal) -> None:
    """Import the service while it runs; the next start of the gateway has its tools."""
    (user.folder / "pets.py").write_text(_SERVICE)
    port = user.sandbox.pick_free_port()
    url = f"http://127.0.0.1:{port}/openapi.json"
    service = await user.start_typed("pets", f"python pets.py {port}", "pets are open")
    await service.wait_for_url(url)
    imported = await user.run_typed(f"deputize import openapi {url} --yes")
    journal.check_result(imported, "a service is imported as the help says", "pets.get_pet", "GET /pets/{number}")
    if imported.code:
        imported = await user.run_typed(f"deputize import {url} --yes")
    journal.check_text(
        read_output(imported), "an operation has the name of its function", "pets.get_pet",
        without=("get_pet_pets_number_get", "then restart deputize dev"),
    )  # fmt: skip


async def read_errors(user: Newcomer, journal: Journal) -> None:
    """Call the operation, by the name that it has, so that each answer is of the status that was asked for."""
    listed = read_output(await user.run_typed("deputize tool list"))
    name = next((word for word in listed.split() if word.startswith("pets.get_pet")), "pets.get_pet")
    called = await user.run_typed(f"deputize call {name} number=1")
    journal.check_result(called, "an imported operation is called", "Rex")
    for status, (number, words) in _ERRORS.items():
        failed = await user.run_typed(f"deputize call {name} number={number} --json")
        journal.check_result(
            failed, f"an error {status} of a service says what the service said", words,
            without=("does not match its error schema", "must be an array"), code=1,
        )  # fmt: skip
