"""Upload of exports to the Hugging Face Hub."""

from keras_transformer.utils.errors import UserError, optional_import


def check_upload(repository):
    """Raise a `UserError` if huggingface_hub or an access token is missing, or if the repository name is invalid.

    Args:
        repository: Name of a model repository, "USER/NAME".
    """
    with optional_import("--push_to_hub", "huggingface_hub", "huggingface"):
        from huggingface_hub import get_token
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id
    try:
        validate_repo_id(repository)
        valid = "/" in repository
    except HFValidationError:
        valid = False
    if not valid:
        raise UserError(
            f"--push_to_hub must have the form USER/NAME, got {repository!r}. "
            "Use only letters, digits, '-', '_' and '.'."
        )
    if not get_token():
        raise UserError("--push_to_hub needs an access token for the hub. Run `hf auth login`, or set HF_TOKEN.")


def upload(folder, repository):
    """Upload the files of an export in one commit and return the URL of the repository.

    If the repository does not exist, the function creates a private one, because the model card states no license yet.

    Args:
        folder: Directory of the export.
        repository: Name of the model repository, "USER/NAME".

    Raises:
        UserError: The Hub is unreachable or rejects the upload. In either case, no file is uploaded.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HTTPError

    api = HfApi()
    files = [CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())]
    try:
        url = api.create_repo(repository, private=True, exist_ok=True)
        api.create_commit(repository, files, commit_message="Upload a model of keras_transformer")
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "server_message", None) or str(error).strip().partition("\n")[0]
        raise UserError(
            f"{api.endpoint} rejected the upload to {repository}: {reason.rstrip('.')}. The export in {folder} is "
            f"complete; upload it with `hf upload --private {repository} {folder}`."
        ) from None
    return str(url)
