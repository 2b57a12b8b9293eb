"""Settings of signing in through an identity provider: whom to believe, and who may do what."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

RoleName = Literal["viewer", "operator", "admin"]


class OidcSettings(BaseModel):
    """An OpenID Connect provider whose ID tokens are taken; off without an issuer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: str = Field(
        default="", description="the provider's address, as its tokens name it; empty: off"
    )
    client_id: str = Field(default="", description="this installation's id at the provider")
    name_claim: str = Field(default="email", description="claim with a person's name")
    role_claim: str = Field(
        default="groups", description="claim with a person's groups; dots go into objects"
    )
    roles: dict[str, RoleName] = Field(
        default={}, description="value of the role claim to a role; the highest one holds"
    )
    default_role: Literal["none", "viewer", "operator", "admin"] = Field(
        default="none", description="role of who has none by `roles`; none may not sign in"
    )
    session_hours: float = Field(
        default=8.0, gt=0, le=24, description="hours; the provider is asked again after that"
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.issuer and not self.client_id:
            raise ValueError("client_id: needed with an issuer")
        if self.issuer and not self.issuer.startswith(("https://", "http://")):
            raise ValueError("issuer: expected an https address")
        return self
